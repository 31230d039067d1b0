"""When 8 bits are tried."""

import dataclasses

import pytest
from intervals import BASE

from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.statistics.step_times import StepTimes
from mqgrad.statistics.wide_trial import WideTrial
from mqgrad.widths import TIMED_WIDTHS, Width


def interval(bits: Width, seconds: float) -> IntervalStatistics:
    return dataclasses.replace(
        BASE, bits=bits, step_seconds=seconds, compute_seconds=0.02, losses=(1.0,) * 10
    )


def tried(*intervals: IntervalStatistics, widths: tuple[Width, ...] = TIMED_WIDTHS) -> list[Width | None]:
    """At each decision."""
    trial, times, answers = WideTrial(), StepTimes(), []
    for statistics in intervals:
        times.observe(statistics)
        answers.append(trial.width(statistics, times, widths))
    return answers


def test_the_second_decision_tries_8_bits_then_the_tenth_and_so_on() -> None:
    answers = tried(interval(4, 0.05), *[interval(1, 0.04)] * 699)
    assert [number for number, bits in enumerate(answers, 1) if bits == 8] == [2, 10, 42, 170, 426, 682]
    assert set(answers) == {None, 8}


def test_not_where_iterations_would_take_half_as_long_again() -> None:
    assert tried(interval(4, 0.42), *[interval(1, 0.12)] * 9) == [None] * 10


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_not_where_as_many_bits_have_been_used(bits: Width) -> None:
    assert tried(interval(4, 0.05), interval(bits, 0.05), interval(1, 0.04)) == [None, None, None]


def test_not_where_there_are_no_8_bits() -> None:
    assert tried(interval(4, 0.05), interval(1, 0.04), widths=(1, 4, 32)) == [None, None]


def test_where_seconds_have_changed_the_next_trial_comes_soon() -> None:
    trial, times = WideTrial(), StepTimes()
    answers = []
    for number in range(1, 61):
        statistics = interval(1, 0.04)
        times.observe(statistics)
        answers.append(trial.width(statistics, times, TIMED_WIDTHS))
        if number in (10, 13):
            trial.expect_change()
    assert [number for number, bits in enumerate(answers, 1) if bits == 8] == [2, 10, 18, 50]


def test_a_restored_trial_goes_on() -> None:
    trial, times = WideTrial(), StepTimes()
    times.observe(interval(4, 0.05))
    assert trial.width(interval(4, 0.05), times, TIMED_WIDTHS) is None
    other = WideTrial()
    other.load_state_dict(trial.state_dict())
    assert other.width(interval(1, 0.05), times, TIMED_WIDTHS) == 8
    trial.load_state_dict(other.state_dict())
    assert trial.width(interval(1, 0.05), times, TIMED_WIDTHS) is None
