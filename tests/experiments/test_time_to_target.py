"""Times to a target, of curves made by hand."""

import math

import pytest
from comparison import result
from hypothesis import example, given
from hypothesis import strategies as st

from mqgrad.experiments.time_to_target import first_reached, smoothed

HALVING = [8.0, 4.0, 2.0, 1.0]
SECONDS = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("target", "seconds"),
    [
        (2.0, 3.0),
        (math.sqrt(8), 2.5),
        (2**0.25, 3.75),
        (9.0, 1.0),  # the first evaluation is below: nothing is known of the time before
        (8.0, 1.0),
        (0.99, None),
    ],
)
def test_a_time_is_log_linear_between_evaluations(target: float, seconds: float | None) -> None:
    assert first_reached(SECONDS, HALVING, target) == pytest.approx(seconds)


@pytest.mark.parametrize("target", [7.0, 3.0, 1.5, 1.0])
def test_it_does_not_depend_on_how_often_a_run_is_looked_at(target: float) -> None:
    often = [n / 10 for n in range(10, 41)]
    losses: list[float | None] = [2.0 ** (4 - at) for at in often]
    seldom = slice(None, None, 15)
    assert first_reached(often, losses, target) == pytest.approx(
        first_reached(often[seldom], losses[seldom], target)
    )


def test_of_a_noisy_curve_it_is_the_first_crossing() -> None:
    assert first_reached(SECONDS, [4.0, 1.0, 3.0, 0.5], 2.0) == pytest.approx(1.5)


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_next_to_an_evaluation_without_a_loss_it_is_that_of_the_point(unknown: float | None) -> None:
    assert first_reached(SECONDS, [4.0, unknown, 1.0, 0.5], 2.0) == 3.0
    assert first_reached(SECONDS, [unknown, 4.0, 1.0, unknown], 2.0) == pytest.approx(2.5)
    assert first_reached(SECONDS, 4 * [unknown], 2.0) is None
    assert first_reached([], [], 2.0) is None


@pytest.mark.parametrize(("target", "seconds"), [(2.0, 1.5), (0.0, 2.0), (1.0, 1.75)])
def test_next_to_a_loss_of_zero_it_is_linear(target: float, seconds: float) -> None:
    assert first_reached([1.0, 2.0], [4.0, 0.0], target) == pytest.approx(seconds)
    assert first_reached([1.0, 2.0], [3.0, -1.0], 1.0) == pytest.approx(1.5)


@example([1e3, 5e-324], 5e-324)
@example([math.nextafter(1e3, 2e3), 1e3], 1e3)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8), st.floats(-1e3, 1e3))
def test_it_lies_between_the_evaluations_around_it(losses: list[float], target: float) -> None:
    reached = first_reached(range(len(losses)), losses, target)
    first = next((n for n, loss in enumerate(losses) if loss <= target), None)
    if first is None or reached is None:
        assert first is reached
    else:
        assert max(first - 1, 0) <= reached <= first


def test_iterations_are_told_in_the_same_way_and_of_finished_runs_only() -> None:
    run = result("fixed:4", 1, [4.0, 1.0], step=0.5)
    assert run.curve.seconds_to(2.0) == pytest.approx(0.75)
    assert run.curve.iterations_to(2.0) == pytest.approx(7.5)
    diverged = result("fixed:4", 1, [4.0, 1.0], outcome="diverged")
    assert diverged.curve.seconds_to(2.0) is diverged.curve.iterations_to(2.0) is None


def test_a_loss_is_smoothed_over_the_iterations_within_ten_percent_of_it() -> None:
    assert smoothed([10, 20, 95, 100, 111], [8.0, 4.0, 1.0, 4.0, 9.0]) == pytest.approx(
        [8.0, 4.0, 2.0, 2.0, 6.0]
    )
    assert smoothed([95, 100], [-1.0, 4.0]) == [1.5, 1.5]  # which have no logarithm
    assert smoothed([10, 95, 100], [8.0, None, 4.0]) == [pytest.approx(8.0), None, None]
