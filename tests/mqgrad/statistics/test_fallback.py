"""When 32 bits are taken in place of the width that was decided."""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

import pytest
from intervals import BASE

from mqgrad.statistics.fallback import Fallback
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.statistics.step_times import StepTimes
from mqgrad.widths import TIMED_WIDTHS, Width


def interval(bits: Width, seconds: float) -> IntervalStatistics:
    coding = 0.004 if bits < 32 else 0.0
    return dataclasses.replace(
        BASE,
        bits=bits,
        step_seconds=seconds,
        compute_seconds=0.02,
        encode_seconds=coding / 2,
        decode_seconds=coding / 2,
        losses=(1.0,) * 10,
    )


def run(
    seconds: Callable[[int, Width], float],
    *,
    decided: Width | Callable[[int], Width] = 1,
    start: Width = 4,
    widths: Sequence[Width] = TIMED_WIDTHS,
    intervals: int = 40,
    state: tuple[Fallback, StepTimes] | None = None,
) -> list[Width]:
    """Widths in force, where an iteration of interval k takes ``seconds(k, bits)``."""
    fallback, times = state or (Fallback(), StepTimes())
    bits, taken = start, []
    for number in range(intervals):
        statistics = interval(bits, seconds(number, bits))
        times.observe(statistics)
        wanted = decided(number) if callable(decided) else decided
        bits = fallback.width(wanted, statistics, times, widths)
        taken.append(bits)
    return taken


def fast(_: int, bits: Width) -> float:
    """A link that nobody waits for: coding is all that a width costs."""
    return 0.026 if bits == 32 else 0.030


def slow(_: int, bits: Width) -> float:
    return 0.025 + 0.005 * bits


def test_on_a_fast_link_32_bits_follow_the_first_trial_and_stay() -> None:
    taken = run(fast)
    assert taken[:3] == [1, 8, 32]
    assert taken.count(32) >= 35


def test_on_a_slow_link_what_is_decided_is_in_force() -> None:
    assert set(run(slow)) == {1}


def test_between_the_two_32_bits_are_tried_and_left() -> None:
    """0.4 ms a bit: 32 bits take two fifths longer than 1, which 8 tell roughly."""
    taken = run(lambda _, bits: 0.0300 + 0.0004 * bits)
    assert taken.count(32) <= 1
    assert 1 <= taken.count(8) <= 3


def test_where_32_bits_are_a_tenth_slower_they_are_left_though_one_interval_could_not_tell() -> None:
    """0.22 ms a bit, and intervals that are off by 4 %: the trial says little, what has been measured decides."""
    generator = random.Random(0)

    def seconds(_: int, bits: Width) -> float:
        return (0.0260 + 0.00022 * bits + 0.0035 * (bits < 32)) * math.exp(generator.gauss(0.0, 0.04))

    taken = [run(seconds, decided=6, intervals=100) for _ in range(10)]
    assert max(each.count(32) for each in taken) > 0
    assert sum(each.count(32) for each in taken) < 100


def test_where_the_link_becomes_slow_what_is_decided_comes_back() -> None:
    taken = run(lambda number, bits: fast(number, bits) if number < 20 else slow(number, bits))
    assert taken[19] == 32
    assert set(taken[22:]) == {1}


@pytest.mark.parametrize("decided", [8, 16])
def test_a_width_near_32_needs_no_trial(decided: Width) -> None:
    assert 32 in run(fast, decided=decided, start=decided)[:10]


def test_an_opening_at_32_bits_is_no_measurement_of_them() -> None:
    """Its iterations are a process's first: slow, and few."""
    taken = run(lambda number, bits: fast(number, bits) * (1.0 if number else 1.5), start=32)
    assert taken.count(32) >= 25


def test_a_trial_takes_no_bits_away() -> None:
    assert run(slow_below_16, decided=lambda number: 1 if number == 0 else 16)[:2] == [1, 16]


def slow_below_16(_: int, bits: Width) -> float:
    return 0.030 if bits >= 16 else 0.031


def test_where_a_slow_link_becomes_fast_32_bits_are_found() -> None:
    def seconds(number: int, bits: Width) -> float:
        return slow(number, bits) if number < 50 else fast(number, bits)

    taken = run(seconds, decided=4, intervals=90)
    assert 32 not in taken[:50]
    assert 32 in taken[50:70]


def test_after_a_pause_32_bits_come_back() -> None:
    taken = run(lambda number, bits: fast(number, bits) * (2.0 if number == 20 else 1.0), intervals=80)
    assert taken[19] == 32 != taken[20]
    assert taken[65:].count(32) >= 12


def test_seconds_are_those_of_an_iteration_where_rounds_change_their_length() -> None:
    """A round of half the length is no surprise, and no faster code."""
    fallback, times = Fallback(), StepTimes()
    bits, taken = 4, []
    for number in range(30):
        period = 8 if number < 15 else 4
        statistics = dataclasses.replace(interval(bits, period * fast(number, bits)), period=period)
        times.observe(statistics)
        bits = fallback.width(1, statistics, times, TIMED_WIDTHS)
        taken.append(bits)
    assert set(taken[3:]) == {32}


def test_without_32_bits_nothing_changes() -> None:
    assert set(run(fast, widths=(1, 2, 4, 8))) == {1}


def test_nothing_is_known_where_no_time_was_measured() -> None:
    assert run(lambda *_: math.nan, decided=8, start=8) == [8] * 40


def test_a_restored_fallback_goes_on() -> None:
    fallback, times = Fallback(), StepTimes()
    before = run(fast, intervals=1, state=(fallback, times))
    other = Fallback()
    other.load_state_dict(fallback.state_dict())
    after = run(fast, start=before[-1], intervals=5, state=(other, times))
    assert before + after == run(fast, intervals=6)
    fallback.load_state_dict(other.state_dict())
    assert fallback.state_dict() == other.state_dict()


def test_a_wrong_state_is_refused() -> None:
    with pytest.raises(ValueError, match="the fallback to 32 bits"):
        Fallback().load_state_dict({})
