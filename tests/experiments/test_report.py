"""The arithmetic of a comparison's report, and what it says."""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqgrad.experiments.estimates import (
    Ratio,
    Timing,
    geometric_mean_with_interval,
    mean_of_fractions,
    mean_of_ratios,
    mean_with_interval,
    paired_ratio,
)
from mqgrad.experiments.report import SystemSummary, summarize, summarize_overall, target_loss, verdict
from mqgrad.experiments.report_labels import families, shown_systems
from mqgrad.experiments.report_pages import write_report
from mqgrad.experiments.report_tables import cells_table, group_table, overall_table, ratio_table, time_table
from mqgrad.experiments.sweep_config import SweepConfig
from mqgrad.experiments.sweep_result import CellResult

PARTS = {"compute": 1.5, "encode": 0.1, "wire": 1.2, "decode": 0.1, "decide": 0.01}


def small_config(**changes: Any) -> SweepConfig:
    chosen: dict[str, Any] = {
        "systems": SYSTEMS,
        "workloads": ("digits-mlp",),
        "links": ("emulated:100mbit",),
        "seeds": (1, 2),
        "iterations": 15,
    }
    return SweepConfig(**{**chosen, **changes})


def result(
    system: str, seed: int, losses: Sequence[float | None], *, step: float = 1.0, **changes: Any
) -> CellResult:
    fields: dict[str, Any] = {
        "workload": "digits-mlp",
        "optimizer": "own",
        "link": "emulated:100mbit",
        "system": system,
        "seed": seed,
        "outcome": "finished",
        "wall_seconds": 1.0,
        "mean_bits": 4.0,
        "wire_bytes": 2.0**20,
        "parts": PARTS,
        "heldout": {"loss": losses[-1] if losses else None, "accuracy": 0.5},
        "iterations": [5 * (i + 1) for i in range(len(losses))],
        "seconds": [step * (i + 1) for i in range(len(losses))],
        "losses": list(losses),
        "bits": [4] * len(losses),
    }
    return CellResult(**{**fields, **changes})


SYSTEMS = ("fixed:32", "fixed:4", "fixed:2", "goodput", "powersgd:rank=1", "powersgd:rank=4", "fp16", "none")
ROWS = [
    result("fixed:32", 1, [3.0, 2.0] + 5 * [1.0], gradient_norms_sq=[1.0, 4.0]),
    result(
        "fixed:32", 2, [3.0] + 6 * [1.5], gradient_norms_sq=[2.0, 2.0]
    ),  # target 1.5: what both reach early
    result("fixed:4", 1, [1.5, 0.5, 0.25], step=0.75),  # 0.75 s against 3 s
    result("fixed:4", 2, [2.0, 1.0, 0.5], step=1.0),  # 2 s against 2 s
    result("fixed:2", 1, [1.0], step=0.5),
    result("fixed:2", 2, [2.0], step=0.5),  # never
    result("goodput", 1, [1.0], outcome="diverged", reason="training loss nan"),  # reached, then diverged
    result("goodput", 2, [], outcome="crashed", reason="failed", heldout={}, mean_bits=None, wire_bytes=None),
    result("powersgd:rank=1", 1, [1.0], step=2.0),
    result("powersgd:rank=1", 2, [1.0], step=2.0),
    result("powersgd:rank=4", 1, [1.0], step=0.1),
    result("powersgd:rank=4", 2, [9.0], step=0.1),  # never
    result("fp16", 1, [9.0], step=4.0),  # never
    result("fp16", 2, [1.0], step=1.0),
    result("none", 1, [0.1], step=0.5),  # 0.1 s an iteration
    result("none", 2, [0.1], step=0.5),
]


def test_the_target_is_what_every_fp32_run_has_reached_by_60_percent_of_its_seconds() -> None:
    falling = [1.0 - n / 10 for n in range(10)]  # 1.0, 0.9, ... 0.1, a point a second
    early = result("fixed:32", 1, falling)
    lucky = result("fixed:32", 2, [falling[0], 0.0, *falling[2:]])
    others = [result("fixed:32", 3, [0.01], outcome="diverged"), result("fixed:4", 1, [9.0])]
    assert target_loss([early]) == pytest.approx(
        0.6
    )  # the median of 0.7, 0.6 and 0.5, which is the sixth point
    assert target_loss([lucky]) == pytest.approx(0.6)  # one low point does not set it
    slower = result("fixed:32", 4, [2 * loss for loss in falling], step=3.0)
    assert target_loss([early, slower, *others]) == pytest.approx(1.2)
    assert target_loss([result("fixed:32", 1, [None, 2.0, None, 1.0, 1.0])]) == 2.0
    assert target_loss([result("fixed:32", 1, [2.0, 1.0])]) == 2.0  # two points: the first is after 50 %
    assert target_loss([result("fixed:32", 1, [2.0])]) == 2.0
    assert target_loss(others) is None


def summaries() -> dict[str, SystemSummary]:
    (group,) = summarize(small_config(), ROWS)
    assert group.target == 1.5
    return {summary.system: summary for summary in group.systems}


def test_ratios_are_geometric_means_over_pairs_of_seeds() -> None:
    four = summaries()["fixed:4"]
    assert four.seconds_to_target == pytest.approx(1.375)
    assert four.ratios["fp32"] is not None
    assert four.ratios["fp32"].value == pytest.approx(math.sqrt(0.25 * 1.0))
    assert four.ratios["oracle"] == Ratio(1.0, "=", 1.0, 1.0)
    assert four.final_loss is not None
    assert four.final_loss.value == pytest.approx(math.sqrt(0.25 * 0.5))
    assert four.accuracy == (0.5, 0.5, 0.5)
    dense = summaries()["fixed:32"]
    assert dense.ratios["oracle"] is not None
    assert dense.ratios["oracle"].value == pytest.approx(2.0)


def test_references_are_chosen_in_hindsight() -> None:
    (group,) = summarize(small_config(), ROWS)
    chosen = {name: reference.system for name, reference in group.references.items()}
    assert chosen == {
        "fp32": "fixed:32",
        "fp16": "fp16",
        "PowerSGD": "powersgd:rank=1",  # rank 4 is faster where it gets there, and misses one
        "oracle": "fixed:4",
        "ideal": "none",
    }
    ideal = group.references["ideal"].timing
    assert ideal is not None
    assert ideal.seconds == pytest.approx({1: 15 * 0.1, 2: 10 * 0.1})  # fp32's iterations at none's pace
    assert summaries()["none"].ratios == dict.fromkeys(group.references)
    assert summaries()["none"].reached == 0


def test_the_fastest_stand_first_and_of_many_the_best_of_each_kind_are_drawn() -> None:
    (group,) = summarize(small_config(), ROWS)
    order = [summary.system for summary in group.systems]
    assert order[0] == "fixed:4"
    assert order[-2:] == ["goodput", "none"]  # failed, and not compared
    assert order.index("fixed:32") < order.index("fixed:2")  # which is but a bound
    assert shown_systems(group) == order
    many = [
        result(name, seed, [1.0], step=step)
        for name, step in (("qsgd", 0.3), ("onebit", 0.2), ("local-sgd", 0.4))
        for seed in (1, 2)
    ]
    config = small_config(systems=(*SYSTEMS, "qsgd", "onebit", "local-sgd"))
    (group,) = summarize(config, ROWS + many)
    assert set(shown_systems(group)) == {
        "fixed:32",
        "none",
        "fp16",
        "fixed:4",
        "goodput",
        "onebit",
        "local-sgd",
        "powersgd:rank=1",
    }


def test_a_reference_that_missed_the_target_gives_an_upper_bound() -> None:
    by_name = summaries()
    four, two = by_name["fixed:4"].ratios["fp16"], by_name["fixed:2"].ratios["fp16"]
    assert four is not None
    assert (four.sign, four.value) == ("≤", pytest.approx(math.sqrt(0.75 / 4.0 * 2.0 / 1.0)))
    assert two is None  # both missed it


def test_a_missed_target_is_told_and_bounds_the_mean() -> None:
    by_name = summaries()
    two, goodput = by_name["fixed:2"], by_name["goodput"]
    assert (two.reached, two.runs) == (1, 2)
    assert (goodput.reached, goodput.seconds_to_target, goodput.final_loss) == (0, None, None)
    assert goodput.outcomes == {"diverged": 1, "crashed": 1}
    config = small_config()
    overall = {each.system: each for each in summarize_overall(config, summarize(config, ROWS))}
    as_if_at_the_end = math.sqrt((0.5 / 3.0) * (0.5 / 2.0))
    assert overall["fixed:2"].ratios["fp32"] == (pytest.approx(as_if_at_the_end), "≥", None, None)
    assert overall["fixed:2"].verdicts == {"missed": 1}
    assert overall["goodput"].verdicts == {"failed": 1}
    assert overall["goodput"].ratios["fp32"] is None
    assert overall["goodput"].worst["fp32"] == "did not finish: digits-mlp @ emulated:100mbit"
    assert overall["fixed:4"].ratios["fp32"] == (pytest.approx(0.5), "=", None, None)
    assert overall["fixed:4"].worst["fp32"] == "0.50 digits-mlp @ emulated:100mbit"
    assert "none" not in overall
    assert (overall["fixed:2"].compared["fp16"], overall["fixed:2"].ratios["fp16"]) == (0, None)


def test_the_worst_cell_is_one_that_was_missed() -> None:
    links = ("emulated:100mbit", "emulated:1gbit")
    slow = [
        result("fixed:32", 1, [1.0]),
        result("fixed:4", 1, [2.0]),  # missed: at least 1
    ]
    other = {"link": links[1]}
    fast = [result("fixed:32", 1, [1.0], **other), result("fixed:4", 1, [1.0], step=3.0, **other)]
    config = small_config(systems=("fixed:32", "fixed:4"), links=links)
    _, four = summarize_overall(config, summarize(config, slow + fast))
    assert four.worst["fp32"] == "≥ 1.00 digits-mlp @ emulated:100mbit"
    assert four.ratios["fp32"] == (pytest.approx(math.sqrt(3.0)), "≥", None, None)
    assert four.verdicts == {"missed": 1, "undecided": 1}


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Ratio(0.5, "=", 0.4, 0.6), "faster"),
        (Ratio(2.0, "=", 1.5, 2.5), "slower"),
        (Ratio(0.9, "=", 0.7, 1.1), "undecided"),
        (Ratio(0.5), "undecided"),  # one seed
        (Ratio(0.5, "≥"), "missed"),
        (None, "unknown"),
    ],
)
def test_a_verdict_follows_the_interval(ratio: Ratio | None, said: str) -> None:
    summary = dataclasses.replace(summaries()["fixed:4"], ratios={"fp32": ratio})
    assert verdict(summary) == said


def test_without_a_finished_fp32_run_there_is_no_target() -> None:
    rows = [result("fixed:32", 1, [], outcome="timed out"), result("fixed:4", 1, [1.0])]
    (group,) = summarize(small_config(), rows)
    assert group.target is None
    assert all(set(summary.ratios.values()) == {None} and summary.reached == 0 for summary in group.systems)
    assert {summary.system: verdict(summary) for summary in group.systems} == {
        "fixed:32": "failed",
        "fixed:4": "unknown",
    }


def test_intervals_are_students() -> None:
    estimate = mean_with_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert estimate is not None
    assert estimate.high == pytest.approx(3.0 + 2.7764 * math.sqrt(2.5 / 5), abs=1e-3)
    assert mean_with_interval([]) is None
    assert mean_with_interval([2.0]) == (2.0, None, None)
    loss = geometric_mean_with_interval([0.001, 0.1])
    assert loss is not None
    assert loss.value == pytest.approx(0.01)
    assert loss.low is not None
    assert 0 < loss.low < 0.001
    assert geometric_mean_with_interval([2.0]) == (pytest.approx(2.0), None, None)
    assert geometric_mean_with_interval([]) is None
    assert geometric_mean_with_interval([0.0]) == (pytest.approx(0.0, abs=1e-9), None, None)
    assert mean_of_fractions([0.99, 1.0, 1.0]) == (
        pytest.approx(2.99 / 3),
        pytest.approx(0.9823, abs=1e-4),
        1.0,
    )
    assert mean_of_fractions([]) is None
    ratio = paired_ratio(Timing({1: 2.0, 2: 8.0, 3: 1.0}, True), Timing({1: 1.0, 2: 1.0}, True))
    assert ratio is not None
    assert ratio.value == pytest.approx(4.0)


def test_a_mean_of_ratios_is_as_certain_as_they_are() -> None:
    exact, lower, upper = Ratio(2.0), Ratio(8.0, "≥"), Ratio(8.0, "≤")
    assert mean_of_ratios([exact, exact]) == Ratio(2.0)
    assert mean_of_ratios([exact, lower]) == Ratio(pytest.approx(4.0), "≥")
    assert mean_of_ratios([exact, upper]) == Ratio(pytest.approx(4.0), "≤")
    assert mean_of_ratios([lower, upper]) is None
    assert mean_of_ratios([]) is None


def test_tables_say_what_was_missed_and_where_time_goes() -> None:
    config = small_config()
    groups = summarize(config, ROWS)
    (group,) = groups
    by_system = {row[0]: row for row in ratio_table(groups, summarize_overall(config, groups)).rows}
    assert by_system["fixed:2"][2] == ("≥ 0.20 (1/2)", None)
    assert by_system["goodput"][2] == ("failed", 1.0)
    assert by_system["fixed:4"][2] == ("0.50 ★", 0.0)  # two seeds that differ: undecided
    (cell,) = cells_table(groups).rows
    assert cell[:4] == ["digits-mlp @ emulated:100mbit", "1.5000", "fixed:4", "0.50"]
    assert cell[-1] == "0.08"  # the mean of ½·log2(2.5/2) and 0
    rows = {row[0]: row for row in group_table(group).rows}
    assert rows["fp16"][1] == "1.00 (1/2)"
    assert rows["none (sends nothing)"][1] == "—"
    times = {row[0]: row for row in time_table(group).rows}
    assert times["fixed:2"][1:4] == ["100.00", "300.00", "0.00"]


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
    groups = summarize(config, rows)
    overall = {each.system: each for each in summarize_overall(config, groups)}
    (mean,) = {row[1] for row in overall_table(list(overall.values())).rows if row[0] == "fp16"}
    assert mean == ("1.00 (1 of 2)" if last == 2 else "1.00")
    if last:
        verdicts = {each.system: verdict(each) for each in groups[1].systems}
        assert verdicts["fixed:4"] == ("unknown" if last == 1 else "undecided")


def write_results(folder: Path, config: SweepConfig, rows: Sequence[CellResult]) -> None:
    (folder / "config.json").write_text(json.dumps({"sweep": config.to_dict(), "revision": "abc"}))
    lines = (json.dumps(dataclasses.asdict(row)) + "\n" for row in rows)
    (folder / "results.jsonl").write_text("".join(lines))


def test_both_reports_hold_the_same_and_need_no_other_file(tmp_path: Path) -> None:
    write_results(tmp_path, small_config(), ROWS)
    files = write_report(tmp_path)
    page, text = files.html.read_text(), files.markdown.read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page
    for told in ("≥ 0.20 (1/2)", "goodput, seed 1: diverged: training loss nan", "never", "◂ oracle"):
        assert told in page
        assert told in text


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
    groups = summarize(config, rows)
    table = ratio_table(groups, summarize_overall(config, groups))
    assert table.header == ["system", "all cells", "worst", "emulated:100mbit", "emulated:1gbit"]
    by_system = {row[0]: row for row in table.rows}
    assert by_system["**policy default**"][2] == "1.80 emulated:1gbit"
    assert by_system["qsgd"][2] == "2.10 emulated:1gbit"
    (slow,) = [row for row in cells_table(groups).rows if "1gbit" in row[0]]
    assert "1.80 (no. 8 of 11)" in slow
    write_results(tmp_path, config, rows)
    page = write_report(tmp_path).html.read_text()
    assert page.count("data:image/png;base64,") == 5  # ratios, and two of each link
    assert page.count("<details>") == page.count("</details>") == 9
    assert "<b>policy default</b>" in page
