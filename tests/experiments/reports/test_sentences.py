"""What a report says in sentences."""

from comparison import result, small_config

from mqgrad.experiments.reports.cells import summarize
from mqgrad.experiments.reports.sentences import describe_cell, describe_sweep


def test_a_report_says_when_its_runs_began() -> None:
    config = small_config(seeds=(1,))
    times = {"fixed:32": "2026-11-27T06:05:59+00:00", "fixed:4": "2026-11-27T05:40:00+00:00"}
    rows = [result(system, 1, [2.0, 1.0, 0.5], started=started) for system, started in times.items()]
    told = describe_sweep(config, summarize(config, rows), rows)
    assert "2026-11-27 05:40 to 2026-11-27 06:05 UTC" in told
    without = [result(system, 1, [2.0, 1.0, 0.5]) for system in times]
    assert "UTC" not in describe_sweep(config, summarize(config, without), without)


def test_a_target_that_is_no_early_loss_of_fp32s_is_told() -> None:
    config = small_config(seeds=(1,))
    slow = [result("fixed:32", 1, [2.0], step=32.0), result("fixed:4", 1, [2.0, 1.0])]
    told = describe_cell(summarize(config, slow)[0], config)
    assert "TOO FEW SECONDS: fp32 was first looked at after 100% of its own" in told
    assert "larger --budget-seconds" in told
    enough = [result("fixed:32", 1, [2.0, 1.0, 1.0, 1.0]), result("fixed:4", 1, [2.0, 1.0])]
    assert "TOO FEW" not in describe_cell(summarize(config, enough)[0], config)
