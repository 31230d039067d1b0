"""What an interval of a run through the hook is said to have cost."""

from types import SimpleNamespace
from typing import Any

import pytest

from mqgrad.costs import Totals
from mqgrad.trainers.methods.interval import CompressedInterval


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_decision_that_a_pause_waits_for_counts_as_training(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("mqgrad.trainers.methods.interval.time.perf_counter", lambda: now[0])
    state: Any = SimpleNamespace(
        controller=object(),
        totals=Totals(step_seconds=1.0, iterations=4),
        mark=lambda: None,
        drain=lambda: now.append(now.pop() + seconds),
        bits=4,
        coding=None,
        period=1,
        period_rule=None,
        compressor=SimpleNamespace(figures=dict),
        last_statistics=None,
    )
    interval = CompressedInterval(state)
    interval.begin(2, None)
    state.totals = Totals(step_seconds=1.5, iterations=6)
    assert interval.end().statistics.step_seconds == pytest.approx(0.5 + seconds)
