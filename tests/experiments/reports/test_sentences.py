"""What a report says in sentences."""

from comparison import result, small_config

from mqgrad.experiments.reports.cells import summarize
from mqgrad.experiments.reports.sentences import describe_sweep


def test_a_report_says_when_its_runs_began() -> None:
    config = small_config(seeds=(1,))
    times = {"fixed:32": "2026-11-27T06:05:59+00:00", "fixed:4": "2026-11-27T05:40:00+00:00"}
    rows = [result(system, 1, [2.0, 1.0, 0.5], started=started) for system, started in times.items()]
    told = describe_sweep(config, summarize(config, rows), rows)
    assert "2026-11-27 05:40 to 2026-11-27 06:05 UTC" in told
    without = [result(system, 1, [2.0, 1.0, 0.5]) for system in times]
    assert "UTC" not in describe_sweep(config, summarize(config, without), without)
