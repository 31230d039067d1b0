"""What a comparison's report says: its tables and its pages."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from comparison import ROWS, SYSTEMS, result, small_config, write_results
from matplotlib.figure import Figure

from mqgrad.compressors import compressor_names
from mqgrad.controllers import controller_names, make_controller
from mqgrad.experiments.reports import plots
from mqgrad.experiments.reports.cells import summarize, verdict
from mqgrad.experiments.reports.labels import families
from mqgrad.experiments.reports.overall import summarize_overall
from mqgrad.experiments.reports.pages import write_report
from mqgrad.experiments.reports.plots import plot_cell, plot_losses
from mqgrad.experiments.reports.tables import (
    cells_table,
    overall_table,
    ratio_table,
    systems_table,
    time_table,
)
from mqgrad.experiments.reports.widths import bits_table, figures_table


def test_tables_say_what_was_missed_and_where_time_goes() -> None:
    config = small_config(systems=SYSTEMS)
    cells = summarize(config, ROWS)
    (cell,) = cells
    by_system = {row[0]: row for row in ratio_table(cells, summarize_overall(config, cells)).rows}
    assert by_system["fixed:2"][2] == ("≥ 0.20 (1/2)", None)
    assert by_system["goodput"][2] == ("failed", 1.0)
    assert by_system["fixed:4"][2] == ("0.50 [0.00, 3341.33] ★", 0.0)  # two seeds that differ: undecided
    (row,) = cells_table(cells).rows
    assert row[:4] == ["digits-mlp @ emulated:100mbit", "1.5000", "fixed:4", "0.50"]
    assert row[-1] == "0.08"  # the mean of ½·log2(2.5/2) and 0
    rows = {row[0]: row for row in systems_table(cell).rows}
    assert rows["fp16"][1] == "1.00 (1/2)"
    assert rows["none (sends no gradient)"][1] == "—"
    assert (rows["fixed:2"][-2], rows["fp16"][-2]) == ("4", "—")  # fp16 has no width to choose
    times = {row[0]: row for row in time_table(cell).rows}
    assert times["fixed:2"][1:4] == ["100.00", "300.00", "0.00"]


def test_who_has_run_with_fewer_seeds_is_told_and_not_the_fastest() -> None:
    """As where a comparison was stopped."""
    config = small_config(systems=("fixed:32", "fixed:2", "fixed:4"))
    runs = [result("fixed:2", 1, [1.0])]
    runs += [result(system, seed, [2.0, 1.0]) for system in ("fixed:32", "fixed:4") for seed in (1, 2)]
    cells = summarize(config, runs)
    rows = {row[0]: row for row in ratio_table(cells, summarize_overall(config, cells)).rows}
    assert "(1 of 2 seeds)" in str(rows["fixed:2"][2])
    assert [name for name, row in rows.items() if "★" in str(row[2])] in (
        ["fixed:4"],
        ["**fp32 (fixed:32)**"],
    )


@pytest.mark.parametrize(
    ("link", "known"), [("emulated:100mbit", True), ("emulated:none", False), ("100mbit", False)]
)
def test_what_ddp_waits_is_told_where_it_is_known(link: str, known: bool) -> None:
    config = small_config(systems=("plain-ddp", "fixed:4"), links=(link,))
    runs = [result(system, 1, [2.0, 1.0], link=link) for system in config.systems]
    (cell,) = summarize(config, runs)
    times = {row[0]: row for row in time_table(cell).rows}
    assert times["fp32 (plain-ddp)"][1:4] == ["200.00", *(["150.00", "50.00"] if known else ["—", "—"])]
    assert times["fixed:4"][1:4] == ["200.00", "150.00", "50.00"]
    plot_cell(cell, runs)


def test_what_has_no_width_is_not_drawn_as_if_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(systems=("plain-ddp", "fixed:4", "powersgd:rank=4", "local-sgd:period=8"))
    runs = [result(system, 1, [2.0, 1.0]) for system in config.systems]
    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "png_bytes", lambda figure: drawn.append(figure) or b"")
    plot_cell(summarize(config, runs)[0], runs)
    losses, bits, _ = drawn[0].axes
    assert (len(losses.lines), len(bits.lines)) == (4 + 1, 2)  # and the target


def test_tables_tell_widths_over_time_and_what_codes_report() -> None:
    config = small_config(systems=("fixed:32", "goodput", "l-greco", "ecq-sgd"))
    runs = [
        result("fixed:32", 1, 4 * [1.0]),
        result("goodput", 1, 4 * [1.0], bits=[4, 2, 2, 1 / 2], interface_bytes=[2**20, 3 * 2**20]),
        result("goodput", 2, 4 * [1.0], bits=[4, 4, 4, 4], interface_bytes=[2**20, 2**20]),
        result("l-greco", 1, 2 * [1.0], bits=[4, 3.5]),
        result("ecq-sgd", 1, [1.0], figures={"entropy_coded_share": 0.5}),
        result("ecq-sgd", 2, [1.0], figures={"entropy_coded_share": 0.7}),
        result("ecq-sgd", 3, [], outcome="crashed", bits=[1, 2]),
    ]
    (cell,) = summarize(config, runs)
    rows = {row[0]: row[1:] for row in bits_table(cell, runs).rows}
    assert rows == {
        "goodput": ["4", "4", "4", "3", "3", "2.25", "1/2, 2, 4"],
        "l-greco": ["4", "4", "4", "4", "3.5", "3.5", "of each parameter its own"],
    }
    assert figures_table(cell, runs).rows == [["ecq-sgd", "entropy_coded_share 0.6"]]
    (goodput,) = [row for row in systems_table(cell).rows if row[0] == "goodput"]
    assert "2.00" in goodput  # of the busiest host, a mean over seeds


@pytest.mark.parametrize("last", range(3))
def test_a_report_of_a_stopped_sweep_says_what_is_missing(last: int, tmp_path: Path) -> None:
    config = small_config(
        systems=("fixed:4", "fixed:32", "fp16"), links=("emulated:1gbit", "emulated:100mbit")
    )
    complete = [
        result(*each, [1.0], link="emulated:1gbit") for each in itertools.product(config.systems, (1, 2))
    ]
    order = (("fixed:4", 1), ("fixed:32", 1))
    rows = [*complete, *(result(*each, [2.0, 1.0], step=2.0) for each in order[:last])]
    write_results(tmp_path, config, rows)
    text = write_report(tmp_path).markdown.read_text()
    assert (
        f"UNFINISHED: {6 - last} of 12 runs are missing: {6 - last} of digits-mlp @ emulated:100mbit." in text
    )
    cells = summarize(config, rows)
    overall = {each.system: each for each in summarize_overall(config, cells)}
    for table in (overall_table(list(overall.values())), ratio_table(cells, list(overall.values()))):
        (mean,) = {row[1] for row in table.rows if row[0] == "fp16"}
        assert mean == ("1.00 (1 of 2)" if last == 2 else "1.00")
    if last:
        verdicts = {each.system: verdict(each) for each in cells[1].systems}
        assert verdicts["fixed:4"] == ("unknown" if last == 1 else "undecided")


def test_a_report_of_a_sweep_that_has_only_begun_has_no_means() -> None:
    config = small_config()
    cells = summarize(config, [result("fixed:4", 1, [1.0])])
    assert [row[1] for row in ratio_table(cells, summarize_overall(config, cells)).rows] == ["—", "—"]


def test_the_notes_name_every_code_and_tell_how_often_decisions_are_made(tmp_path: Path) -> None:
    write_results(tmp_path, small_config(systems=SYSTEMS), ROWS)
    lines = write_report(tmp_path).markdown.read_text().splitlines()
    codes, decisions = (
        next(line for line in lines if title in line) for title in ("**Implementations**", "**Decisions**")
    )
    assert set(compressor_names()) - {"none"} <= set(re.findall(r"[\w-]+", codes))
    intervals = {name: make_controller(name, 60.0).interval for name in controller_names() if name != "fixed"}
    assert intervals == {**dict.fromkeys(intervals, 10), "mqgrad-authors": 5}
    assert make_controller("default").interval == 10
    assert make_controller("fixed:4").interval == 100
    assert "every 10 iterations" in decisions
    assert "mqgrad-authors every 5" in decisions
    assert "measure every 100" in decisions


def test_a_report_says_which_runs_were_repeated_and_which_references_lack_runs(tmp_path: Path) -> None:
    reason = "exit status 1 before the run was over: " + 50 * "out of luck "
    rows = [
        result("plain-ddp", 1, [1.0, 1.0], step=2.0),
        result("plain-ddp", 2, [], outcome="crashed", reason=reason),
        result("fixed:4", 1, [1.0], retried=reason),
        result("fixed:4", 2, [1.0]),
    ]
    config = small_config(systems=("plain-ddp", "fixed:4"))
    write_results(tmp_path, config, rows)
    text = write_report(tmp_path).markdown.read_text()
    (repeated,) = [line for line in text.splitlines() if "after an attempt that failed" in line]
    assert repeated.startswith("digits-mlp @ emulated:100mbit, fixed:4, seed 1: finished after")
    assert "out of luck" in repeated
    assert len(repeated) < 250
    assert "ratios to them: digits-mlp @ emulated:100mbit: 1 of 2 fp32 (plain-ddp)." in text
    assert "Did not finish: 1 of 2 fp32 (plain-ddp); ratios to them are over the other seeds." in text
    (cell,) = cells_table(summarize(config, rows)).rows
    assert cell[2:4] == ["fixed:4", "0.50"]
    assert cell[-2] == "0.50 (fixed:4)"  # the oracle over fp32, on the seed that fp32 finished


def test_what_stops_a_report_half_way_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(tmp_path, small_config(systems=SYSTEMS), ROWS)
    before = {path: path.read_text() for path in write_report(tmp_path)}
    write_text = Path.write_text

    def half(path: Path, text: str, **options: Any) -> int:
        write_text(path, text[: len(text) // 2], **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path)
    assert {path: path.read_text() for path in before} == before


def test_both_reports_hold_the_same_and_need_no_other_file(tmp_path: Path) -> None:
    write_results(tmp_path, small_config(systems=SYSTEMS), ROWS)
    files = write_report(tmp_path)
    page, text = files.html.read_text(), files.markdown.read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page
    for told in ("≥ 0.20 (1/2)", "goodput, seed 1: diverged: training loss nan", "never", "◂ oracle"):
        assert told in page
        assert told in text


@pytest.mark.parametrize("systems", [2, 12])
def test_dollars_in_the_path_of_a_policy_are_no_formula(systems: int, tmp_path: Path) -> None:
    """With few systems and with many, which have figures of their own."""
    policies = tuple(f"runs/$a^$/{number}.mqg" for number in range(systems))
    config = small_config(systems=("fixed:32", *policies))
    write_results(tmp_path, config, [result(system, 1, [2.0, 1.0, 1.0]) for system in config.systems])
    files = write_report(tmp_path)
    assert "policy runs/$a^$/1.mqg" in files.markdown.read_text()
    assert files.html.read_text().count("data:image/png;base64,") == (2 if systems == 2 else 3)


def test_of_many_systems_each_has_a_curve_a_family_and_a_worst_cell(tmp_path: Path) -> None:
    systems = (*SYSTEMS, "default", "mqgrad-authors on minmax", "local-sgd", "qsgd")
    links = ("emulated:100mbit", "emulated:1gbit")
    config = small_config(systems=systems, links=links)
    rows = [
        result(system, seed, [2.0, 1.0, 1.0], step=1 + i * n / 10, link=link)
        for i, system in enumerate(systems)
        for n, link in enumerate(links)
        for seed in (1, 2)
    ]
    assert families(systems) == {
        "policy, fp32, fp16": ["fixed:32", "fp16", "default"],
        "fixed widths": ["fixed:4", "fixed:2"],
        "rules that set the width": ["goodput", "mqgrad-authors on minmax"],
        "other codes": ["powersgd:rank=1", "powersgd:rank=4", "qsgd"],
        "other methods of training": ["local-sgd"],
    }
    cells = summarize(config, rows)
    table = ratio_table(cells, summarize_overall(config, cells))
    assert table.header == ["system", "all cells", "worst", "emulated:100mbit", "emulated:1gbit"]
    by_system = {row[0]: row for row in table.rows}
    assert by_system["**policy default**"][2] == "1.80 emulated:1gbit"
    assert by_system["qsgd"][2] == "2.10 emulated:1gbit"
    (slow,) = [row for row in cells_table(cells).rows if "1gbit" in row[0]]
    assert "1.80 (no. 8 of 11)" in slow
    write_results(tmp_path, config, rows)
    page = write_report(tmp_path).html.read_text()
    assert page.count("data:image/png;base64,") == 5  # ratios, and two of each link
    assert page.count("<details>") == page.count("</details>") == 8
    assert "<b>policy default</b>" in page


def test_losses_below_zero_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a density; a logarithmic axis has no room for them."""
    scales = []

    def noted(figure: Figure, *_: object) -> bytes:
        scales.append(next(axes.get_yscale() for axes in figure.axes if axes.lines))
        return b""

    monkeypatch.setattr("mqgrad.experiments.reports.plots.png_bytes", noted)
    for losses in ([3.0, 2.0, 1.0], [3.0, None, 1.0], [1.0, -2.0, -3.0]):
        rows = [result(name, seed, losses) for name in ("plain-ddp", "fixed:4") for seed in (1, 2)]
        (cell,) = summarize(small_config(systems=("plain-ddp", "fixed:4")), rows)
        plot_cell(cell, rows)
        plot_losses(cell, rows)
    assert scales == ["log", "log", "log", "log", "linear", "linear"]
