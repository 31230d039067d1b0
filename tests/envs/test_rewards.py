"""Rewards against numbers worked out by hand."""

import math
import re

import pytest
from intervals import statistics

from mqgrad.controllers.sarsa import least_squares_slope
from mqgrad.envs.rewards import AuthorsReward, LogLossReward
from mqgrad.statistics.interval import IntervalStatistics


def interval(*losses: float, bits: int = 4, seconds: float = 1.0) -> IntervalStatistics:
    return statistics(losses=losses, bits=bits, step_seconds=seconds / len(losses))


def test_log_loss_is_the_drop_and_telescopes() -> None:
    reward = LogLossReward()
    reward.reset(interval(8.0))
    assert reward(interval(4.0), 2.0) == pytest.approx(math.log(2))
    assert reward(interval(16.0), 3.0) == pytest.approx(-math.log(4))
    assert reward(interval(1.0), 4.0) == pytest.approx(math.log(16))


def test_log_loss_is_discounted_per_second() -> None:
    reward = LogLossReward(discount_per_second=0.5)
    reward.reset(interval(8.0))
    assert reward(interval(4.0), 2.0) == pytest.approx(math.log(2) / 4)


def test_last_interval_counts_as_far_as_it_lies_inside_the_budget() -> None:
    reward = LogLossReward(budget_seconds=10.0)
    reward.reset(interval(8.0))
    assert reward(interval(4.0, seconds=4.0), 11.0) == pytest.approx(0.75 * math.log(2))
    assert reward(interval(2.0, seconds=4.0), 15.0) == 0.0


def test_the_drop_of_a_moving_average_over_seconds_telescopes_to_its_last_value() -> None:
    reward = LogLossReward(smoothing_seconds=2.0)
    reward.reset(interval(8.0))
    level = math.log(8)
    losses, seconds = (4.0, 1.0, 2.0), (1.0, 3.0, 0.5)
    rewards = [reward(interval(loss, seconds=s), 1.0) for loss, s in zip(losses, seconds, strict=True)]
    for loss, s in zip(losses, seconds, strict=True):
        level = math.exp(-s / 2) * level + (1 - math.exp(-s / 2)) * math.log(loss)
    assert sum(rewards) == pytest.approx(math.log(8) - level)


def test_a_moving_average_does_not_depend_on_how_seconds_are_cut_into_intervals() -> None:
    whole, halves = (LogLossReward(budget_seconds=10.0, smoothing_seconds=3.0) for _ in range(2))
    whole.reset(interval(8.0))
    halves.reset(interval(8.0))
    once = whole(interval(2.0, seconds=4.0), 12.0)  # half of it lies inside
    assert halves(interval(2.0, seconds=2.0), 10.0) == pytest.approx(once)
    assert once == pytest.approx((1 - math.exp(-2 / 3)) * math.log(4))


@pytest.mark.parametrize("loss", [-3.0, 0.0])
def test_a_loss_that_no_logarithm_is_taken_of_is_refused(loss: float) -> None:
    with pytest.raises(ValueError, match=f"the training loss is {re.escape(f'{loss:g}')}, .*add a constant"):
        LogLossReward().reset(interval(loss))
    AuthorsReward().reset(interval(loss))


def test_squared_dollars_are_rewarded_like_any_loss() -> None:
    reward = LogLossReward()
    reward.reset(interval(4e10))
    assert reward(interval(1e10), 1.0) == pytest.approx(math.log(4))


def test_log_loss_of_nan_is_the_worst() -> None:
    reward = LogLossReward()
    reward.reset(interval(1.0))
    assert reward(interval(math.nan), 1.0) == pytest.approx(-math.log(1e18))


@pytest.mark.parametrize(
    ("values", "slope"),
    [([1.0, 2.0, 3.0], 1.0), ([5.0], 0.0), ([0.0, 0.0, 0.0, 0.0, 5.0], 1.0), ([3.0, 3.0], 0.0)],
)
def test_least_squares_slope(values: list[float], slope: float) -> None:
    assert least_squares_slope(values) == pytest.approx(slope)


def test_authors_reward_by_hand() -> None:
    reward = AuthorsReward()
    reward.reset(interval(*[2.0] * 5))
    # Smoothed: 1.9, 1.81, 1.729, 1.6561, 1.59049; slope (−2·1.9 − 1.81 + 1.6561 + 2·1.59049)/10 = −0.077292.
    got = reward(interval(*[1.0] * 5, bits=3), 99.0)
    assert got == pytest.approx(-300 * -0.077292 / 20)
    # Next, back at 2: smoothed rises, so the reward is negative; wider intervals count less.
    assert reward(interval(*[3.0] * 5, bits=8), 99.0) < 0
