"""The arithmetic of a comparison's report: targets, references, ratios and verdicts."""

import dataclasses
import math

import pytest
from comparison import ROWS, SYSTEMS, result, small_config

from mqgrad.controllers import saving_ceiling_bits
from mqgrad.experiments.estimates import Ratio
from mqgrad.experiments.reports.cells import (
    SystemSummary,
    summarize,
    target_loss,
    verdict,
    weighted_norms,
)
from mqgrad.experiments.reports.labels import kind_of, shown_systems
from mqgrad.experiments.reports.overall import WorstCell, summarize_overall
from mqgrad.experiments.reports.tables import systems_table, worst_table
from mqgrad.experiments.sweep.axes import exchanges_nothing
from mqgrad.experiments.sweep.result import RunResult


def test_fp32_is_pytorchs_own_ddp_where_it_is_compared() -> None:
    config = small_config(systems=("plain-ddp", "fixed:32"))
    hooked = [result("fixed:32", seed, [1.0], step=2.0) for seed in (1, 2)]
    (cell,) = summarize(config, [*hooked, result("plain-ddp", 1, [1.0]), result("plain-ddp", 2, [1.0])])
    assert [(each.system, ratio.value) for each in cell.systems if (ratio := each.ratios["fp32"])] == [
        ("plain-ddp", 1.0),
        ("fixed:32", pytest.approx(2.0)),
    ]
    (unfinished,) = summarize(config, hooked)  # nothing takes the place of runs that are still to come
    assert unfinished.target is None
    assert "fp32" not in unfinished.references


def test_the_target_is_what_every_fp32_run_has_reached_by_60_percent_of_its_seconds() -> None:
    falling = [1.0 - n / 10 for n in range(10)]  # 1.0, 0.9, ... 0.1, a point a second
    early = result("fixed:32", 1, falling)
    others = [result("fixed:32", 3, [0.01], outcome="diverged"), result("fixed:4", 1, [9.0])]
    assert target_loss([early], "fixed:32") == pytest.approx(0.5)  # the sixth point
    close = [*range(98, 108)]  # all within 10 % of one another: so few points set no target by themselves
    lucky = result("fixed:32", 2, [2.0] * 4 + [0.125] + [2.0] * 5, iterations=close)
    assert target_loss([lucky], "fixed:32") == pytest.approx(2 * (1 / 16) ** 0.1)
    slower = result("fixed:32", 4, [2 * loss for loss in falling], step=3.0)
    assert target_loss([early, slower, *others], "fixed:32") == pytest.approx(1.0)
    assert target_loss([result("fixed:32", 1, [None, 2.0, None, 1.0, 1.0])], "fixed:32") == 2.0
    assert (
        target_loss([result("fixed:32", 1, [2.0, 1.0])], "fixed:32") == 2.0
    )  # two points: the first is after 50 %
    assert target_loss([result("fixed:32", 1, [2.0])], "fixed:32") == 2.0
    assert target_loss(others, "fixed:32") is None


def summaries() -> dict[str, SystemSummary]:
    (cell,) = summarize(small_config(systems=SYSTEMS), ROWS)
    assert cell.target == 1.5
    return {summary.system: summary for summary in cell.systems}


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


def test_what_exchanges_nothing_is_not_compared_by_any_name() -> None:
    names = ("no-sync with learning_rate=0.02", "fixed:32 on none")
    runs = [result(name, seed, [0.1] * 9, step=0.1) for name in names for seed in (1, 2)]
    (cell,) = summarize(small_config(systems=("fixed:32", *names)), [*ROWS, *runs])
    assert {each.system for each in cell.systems if each.ratios["fp32"]} == {"fixed:32"}
    assert all(exchanges_nothing(name) for name in (*names, "no-sync", "none"))
    assert not exchanges_nothing("fixed:4 on quantized with momentum=0")


def test_a_final_loss_may_be_negative() -> None:
    rows = [result("fixed:32", seed, [2.0, -float(seed)]) for seed in (1, 2)]
    (cell,) = summarize(small_config(), rows)
    (dense,) = cell.systems
    assert dense.final_loss is not None
    assert dense.final_loss.value == pytest.approx(-1.5)


def test_references_are_chosen_in_hindsight() -> None:
    (cell,) = summarize(small_config(systems=SYSTEMS), ROWS)
    chosen = {name: reference.system for name, reference in cell.references.items()}
    assert chosen == {
        "fp32": "fixed:32",
        "fp16": "fp16",
        "PowerSGD": "powersgd:rank=1",  # rank 4 is faster where it gets there, and misses one
        "oracle": "fixed:4",
        "goodput": "goodput",  # which has no time here
        "ideal": "none",
    }
    ideal = cell.references["ideal"].timing
    assert ideal is not None
    assert ideal.seconds == pytest.approx({1: 15 * 0.1, 2: 10 * 0.1})  # fp32's iterations at none's pace
    assert summaries()["none"].ratios == dict.fromkeys(cell.references)
    assert summaries()["none"].reached == 0


def test_pytorchs_own_hooks_are_chosen_where_they_are_faster_and_the_ideal_sends_nothing() -> None:
    fp16, rank1, rank4 = (
        "plain-ddp:hook=fp16",
        "plain-ddp:hook=powersgd,rank=1",
        "plain-ddp:hook=powersgd,rank=4",
    )
    steps = {fp16: 0.01, rank1: 40.0, rank4: 50.0, "no-sync": 0.25}
    rows = [result(name, seed, [1.0], step=step) for name, step in steps.items() for seed in (1, 2)]
    config = small_config(systems=(*SYSTEMS, *steps))
    (cell,) = summarize(config, ROWS + rows)
    assert cell.references["fp16"].system == fp16
    assert cell.references["PowerSGD"].system == "powersgd:rank=1"
    ideal = cell.references["ideal"]
    assert ideal.system == "no-sync"
    assert ideal.timing is not None
    assert ideal.timing.seconds == pytest.approx({1: 15 * 0.05, 2: 10 * 0.05})
    assert {kind_of(name) for name in (fp16, rank1, rank4)} == {"fp16", "powersgd"}
    crashed = [dataclasses.replace(row, outcome="crashed") for row in rows]
    (cell,) = summarize(config, ROWS + crashed)
    assert cell.references["fp16"].system == "fp16"


def test_the_faster_of_two_goodput_rules_is_the_reference() -> None:
    config = small_config(systems=("fixed:32", "goodput", "goodput:widths=2+4", "goodput on qsgd"))
    steps = {"fixed:32": 1.0, "goodput": 0.5, "goodput:widths=2+4": 0.25, "goodput on qsgd": 0.01}
    rows = [result(name, seed, [1.0], step=step) for name, step in steps.items() for seed in (1, 2)]
    (cell,) = summarize(config, rows)
    assert cell.references["goodput"].system == "goodput:widths=2+4"
    ratios = {summary.system: summary.ratios["goodput"] for summary in cell.systems}
    assert ratios["goodput"] is not None
    assert ratios["goodput"].value == pytest.approx(2.0)


def test_no_reference_trains_with_settings_of_its_own() -> None:
    names = ("fixed:4", "goodput", "fp16", "powersgd:rank=1", "plain-ddp:hook=fp16")
    others = [f"{name} with batch_size=1" for name in names]
    rows = [result(name, seed, [1.0], step=1e-3) for name in others for seed in (1, 2)]
    (cell,) = summarize(small_config(systems=(*SYSTEMS, *others)), ROWS + rows)
    (without,) = summarize(small_config(systems=SYSTEMS), ROWS)
    assert cell.references == without.references


def test_the_fastest_stand_first_and_of_many_the_best_of_each_kind_are_drawn() -> None:
    (cell,) = summarize(small_config(systems=SYSTEMS), ROWS)
    order = [summary.system for summary in cell.systems]
    assert order[0] == "fixed:4"
    assert order[-2:] == ["goodput", "none"]  # failed, and not compared
    assert order.index("fixed:32") < order.index("fixed:2")  # which is but a bound
    assert shown_systems(cell) == order
    many = [
        result(name, seed, [1.0], step=step)
        for name, step in (("qsgd", 0.3), ("onebit", 0.2), ("local-sgd", 0.4))
        for seed in (1, 2)
    ]
    config = small_config(systems=(*SYSTEMS, "qsgd", "onebit", "local-sgd"))
    (cell,) = summarize(config, ROWS + many)
    assert set(shown_systems(cell)) == {
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
    config = small_config(systems=SYSTEMS)
    (cell,) = cells = summarize(config, ROWS)
    overall = {each.system: each for each in summarize_overall(config, cells)}
    as_if_at_the_end = math.sqrt((0.5 / 3.0) * (0.5 / 2.0))
    assert overall["fixed:2"].ratios["fp32"] == (pytest.approx(as_if_at_the_end), "≥", None, None)
    assert overall["fixed:2"].verdicts == {"missed": 1}
    assert overall["goodput"].verdicts == {"failed": 1}
    assert overall["goodput"].ratios["fp32"] is None
    assert overall["goodput"].worst["fp32"] == WorstCell(cell, None)
    assert overall["fixed:4"].ratios["fp32"] == (pytest.approx(0.5), "=", None, None)
    assert overall["fixed:4"].worst["fp32"] == WorstCell(cell, summaries()["fixed:4"].ratios["fp32"])
    told = {row[0]: row[1] for row in worst_table(list(overall.values())).rows}
    assert told["goodput"] == "did not finish: digits-mlp @ emulated:100mbit"
    assert told["fixed:4"] == "0.50 digits-mlp @ emulated:100mbit"
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
    cells = summarize(config, slow + fast)
    _, four = summarize_overall(config, cells)
    assert four.worst["fp32"] == WorstCell(cells[0], Ratio(1.0, "≥"))
    assert [row[1] for row in worst_table([four]).rows] == ["≥ 1.00 digits-mlp @ emulated:100mbit"]
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


def test_a_reference_with_a_failed_run_stands_for_its_other_seeds() -> None:
    diverged = result("fixed:32", 3, [3.0, None], outcome="diverged", gradient_norms_sq=[1.0, 1e9] * 3)
    others = [result(name, 3, [1.0]) for name in ("fixed:4", "fp16", "powersgd:rank=4", "none")]
    crashed = result("powersgd:rank=1", 3, [], outcome="crashed")
    (cell,) = summarize(small_config(systems=SYSTEMS, seeds=(1, 2, 3)), [*ROWS, diverged, *others, crashed])
    (complete,) = summarize(small_config(systems=SYSTEMS), ROWS)
    assert (cell.target, cell.ceiling_bits) == (complete.target, complete.ceiling_bits)
    by_name = {summary.system: summary for summary in cell.systems}
    assert by_name["fixed:4"].ratios["fp32"] == summaries()["fixed:4"].ratios["fp32"]  # of seeds 1 and 2
    assert by_name["fixed:4"].runs == 3
    assert verdict(by_name["fixed:32"]) == "failed"  # which has no time of its own
    chosen = {name: (each.system, each.failed) for name, each in cell.references.items()}
    assert chosen == {
        "fp32": ("fixed:32", 1),
        "fp16": ("fp16", 0),
        "PowerSGD": ("powersgd:rank=4", 0),  # misses a target, but finishes
        "oracle": ("fixed:4", 0),
        "goodput": ("goodput", 2),
        "ideal": ("none", 0),
    }
    ideal = cell.references["ideal"].timing
    assert ideal is not None
    assert set(ideal.seconds) == {1, 2}


def test_the_ceiling_is_of_the_rules_norms_or_of_fp32s_where_there_are_enough() -> None:
    norms = {"fixed:32": [1.0, 1e9] * 3, "fixed:4": [1.0, 1e6] * 3, "goodput": [1.0, 16.0] * 3}
    rows = [result(name, 1, [3.0, 2.0, 1.0], gradient_norms_sq=norms[name]) for name in norms]
    config = small_config(systems=tuple(norms))

    def ceiling(*rows: RunResult) -> float | None:
        (cell,) = summarize(config, rows)
        return cell.ceiling_bits

    assert ceiling(*rows) == pytest.approx(saving_ceiling_bits([1.0, 16.0]))
    assert ceiling(*rows[:2]) == pytest.approx(saving_ceiling_bits([1.0, 1e9]))
    few = dataclasses.replace(rows[0], gradient_norms_sq=[1.0, 1e9] * 2)
    assert ceiling(few, rows[1]) is None


def test_norms_stand_for_the_iterations_since_the_point_before() -> None:
    run = result("goodput", 1, [3.0, 2.0, 1.5, 1.0], gradient_norms_sq=[None, 9.0, 9.0, 1.0])
    run = dataclasses.replace(run, iterations=[2, 12, 22, 62])
    assert weighted_norms(run) == [(9.0, 20), (1.0, 40)]


def test_a_target_missed_on_a_seed_that_fp32_lacks_is_told() -> None:
    summary = dataclasses.replace(
        summaries()["fixed:4"], ratios={"fp32": Ratio(0.5, "=", 0.4, 0.6)}, runs=3, reached=2
    )
    assert verdict(summary) == "missed"


def test_without_a_finished_fp32_run_there_is_no_target_and_nothing_misses_it() -> None:
    rows = [result("fixed:32", 1, [], outcome="timed out"), result("fixed:4", 1, [1.0])]
    (cell,) = summarize(small_config(systems=SYSTEMS), rows)
    assert {row[0]: row[1] for row in systems_table(cell).rows} == {"fp32 (fixed:32)": "—", "fixed:4": "—"}
    assert cell.target is None
    assert all(set(summary.ratios.values()) == {None} and summary.reached == 0 for summary in cell.systems)
    assert {summary.system: verdict(summary) for summary in cell.systems} == {
        "fixed:32": "failed",
        "fixed:4": "unknown",
    }


def test_a_late_loss_is_a_mean_over_the_last_tenth_of_the_iterations() -> None:
    run = result("fixed:4", 1, [9.0] * 8 + [3.0, 1.0, 4.0], iterations=[*range(10, 90, 10), 90, 95, 100])
    assert run.curve.late == pytest.approx(2.0)  # not 90, which is where the last tenth begins
    negative = result("fixed:4", 1, [-1.0, None, -3.0], iterations=[95, 96, 100])
    assert negative.curve.late == -2.0
    assert result("fixed:4", 1, [None], iterations=[10]).curve.late is None


def test_of_an_unfinished_sweep_the_reference_has_most_of_the_seeds() -> None:
    """The seed that it lacked was the slow one."""
    config = small_config(systems=("plain-ddp", "fixed:1", "fixed:2"))
    steps = {("plain-ddp", 1): 2.0, ("plain-ddp", 2): 8.0, ("fixed:1", 1): 1.0, ("fixed:1", 2): 4.0}
    rows = [result(name, seed, [1.0], step=step) for (name, seed), step in steps.items()]
    (cell,) = summarize(config, [*rows, result("fixed:2", 1, [1.0], step=1.5)])
    assert cell.references["oracle"].system == "fixed:1"
