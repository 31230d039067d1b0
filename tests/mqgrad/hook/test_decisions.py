"""How long the next interval is."""

import math

import pytest
from intervals import statistics
from scripted import Scripted

import mqgrad
from mqgrad.compressors import make_compressor
from mqgrad.controllers.period_rules import DelayRatio, make_period_rule
from mqgrad.hook.decisions import Decisions
from mqgrad.statistics.interval import IntervalStatistics


@pytest.mark.parametrize(
    ("step_seconds", "interval"),
    [(0.1, 10), (0.02, 13), (0.008, 32), (1e-4, 100), (0.0, 10), (math.nan, 10), (math.inf, 10)],
)
def test_intervals_of_short_iterations_are_made_longer(step_seconds: float, interval: int) -> None:
    """To measure and decide takes as long, however short they are; and never more than ten times as long."""
    controller = Scripted([4, 2, 2, 2], interval=10)
    seen = statistics(step_seconds=step_seconds)

    def decided(**of_run: object) -> float:
        own = Decisions(controller, of_run.get("rule"), make_compressor("quantized"), period=1)
        return own.make(seen, 1, rank=0).interval

    assert decided() == 10
    controller.least_seconds = 0.25
    assert decided() == interval
    assert decided(rule=make_period_rule("delay-ratio")) == 10


@pytest.mark.parametrize(
    ("before", "intervals"),
    [((8, 32, 32, 32, 32), [13, 26, 50, 50, 13]), ((8, 8, 32, 32, 4), [13, 13, 26, 13, 13])],
)
def test_where_32_bits_stay_in_force_decisions_become_rarer(
    before: tuple[int, ...], intervals: list[int]
) -> None:
    """Up to a second, where others take a quarter; each twice as long as the last at most."""
    controller = Scripted([4, *before[1:], 8], interval=10)
    controller.least_seconds = 0.25
    own = Decisions(controller, None, make_compressor("quantized"), period=1)
    for bits, interval in zip(before, intervals, strict=True):
        own.adopt(own.make(statistics(step_seconds=0.02, bits=bits), 1, rank=0), rank=0)
        assert own.interval == interval


def test_policies_and_the_goodput_rule_ask_for_it() -> None:
    policy = mqgrad.load_policy("default")
    assert policy.least_seconds == mqgrad.Goodput().least_seconds == 0.25
    with pytest.raises(ValueError, match=r"least_seconds must be from 0\.0 to 3600\.0, not -1"):
        mqgrad.Goodput(least_seconds=-1)


class Undecided(DelayRatio):
    def decide(self, statistics: IntervalStatistics) -> int:
        return None  # type: ignore[return-value]


def test_a_rule_or_controller_that_decides_on_no_number_is_named() -> None:
    """As one whose decide() lacks its return: the message to the other ranks could not be made, nor told why."""
    controller = Scripted([4, 4, 4], interval=10)
    own = Decisions(controller, Undecided(), make_compressor("quantized"), period=1)
    with pytest.raises(
        RuntimeError, match=r"rank 1: .* could not decide: TypeError: a period of None is no number"
    ):
        own.make(statistics(), 1, rank=1)
    own = Decisions(controller, None, make_compressor("quantized"), period=1)
    controller.interval = "ten"  # type: ignore[assignment]
    with pytest.raises(
        RuntimeError, match="Scripted could not decide: TypeError: an interval of 'ten' is no number"
    ):
        own.make(statistics(), 1, rank=1)
