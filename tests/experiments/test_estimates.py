"""Means with their uncertainty, and ratios of times, against arithmetic by hand."""

import math

import pytest

from mqgrad.experiments.estimates import (
    Ratio,
    Timing,
    geometric_mean_with_interval,
    mean_loss,
    mean_of_fractions,
    mean_of_ratios,
    mean_with_interval,
    paired_ratio,
)


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
    assert mean_of_fractions([93.5, 92.0]) == mean_with_interval([93.5, 92.0])  # percent
    ratio = paired_ratio(Timing({1: 2.0, 2: 8.0, 3: 1.0}), Timing({1: 1.0, 2: 1.0}))
    assert ratio is not None
    assert ratio.value == pytest.approx(4.0)
    ratio = paired_ratio(Timing({1: 2.0, 2: 3.0}), Timing({1: 4.0, 2: 4.0}))
    assert ratio is not None
    half = (
        12.7062 * math.log(1.5) / 2
    )  # one degree of freedom; of two logarithms the half of their difference
    assert ratio.value == pytest.approx(math.sqrt(0.375))
    assert ratio.low == pytest.approx(math.sqrt(0.375) * math.exp(-half), rel=1e-4)
    assert ratio.high == pytest.approx(math.sqrt(0.375) * math.exp(half), rel=1e-4)


def test_a_ratio_is_a_bound_where_a_run_that_counts_missed_the_target() -> None:
    one, other = {1: 2.0, 2: 2.0, 3: 9.0}, {1: 1.0, 2: 1.0}
    exact = paired_ratio(Timing(one), Timing(other))
    assert exact == (pytest.approx(2.0), "=", pytest.approx(2.0), pytest.approx(2.0))
    assert paired_ratio(Timing(one, {3}), Timing(other)) == exact  # the reference has no such seed
    assert paired_ratio(Timing(one, {3}), Timing(other, {1})) == Ratio(pytest.approx(2.0), "≤")
    assert paired_ratio(Timing(other), Timing(one, {3})) == (
        pytest.approx(0.5),
        "=",
        *2 * [pytest.approx(0.5)],
    )
    assert paired_ratio(Timing(one, {2, 3}), Timing(other)) == Ratio(pytest.approx(2.0), "≥")
    assert paired_ratio(Timing(one, {2}), Timing(other, {1})) is None
    assert paired_ratio(Timing(one), Timing({4: 1.0})) is paired_ratio(Timing(one), None) is None


def test_losses_without_a_logarithm_have_an_arithmetic_mean() -> None:
    assert mean_loss([0.25, 1.0]) == geometric_mean_with_interval([0.25, 1.0])
    assert mean_loss([-3.0, 1.0]) == mean_with_interval([-3.0, 1.0])
    assert mean_loss([-3.0]) == (-3.0, None, None)  # it was said to be 0
    assert mean_loss([]) is None


def test_a_mean_of_ratios_is_as_certain_as_they_are() -> None:
    exact, lower, upper = Ratio(2.0), Ratio(8.0, "≥"), Ratio(8.0, "≤")
    assert mean_of_ratios([exact, exact]) == Ratio(2.0)
    assert mean_of_ratios([exact, lower]) == Ratio(pytest.approx(4.0), "≥")
    assert mean_of_ratios([exact, upper]) == Ratio(pytest.approx(4.0), "≤")
    assert mean_of_ratios([lower, upper]) is None
    assert mean_of_ratios([]) is None
