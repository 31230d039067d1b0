"""What a step of the environment is worth."""

import math
from typing import Protocol

from mqgrad.controllers.sarsa import slope_reward
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.statistics.losses import LOSS_RANGE, SMOOTHED_LIMIT, SmoothedLosses, log_loss

from .settings import BitWidthSettings


def has_no_baseline(opening_loss: float) -> bool:
    """Whether an episode that begins with this loss has no way to go but down, from nowhere."""
    return not math.isfinite(opening_loss) or opening_loss >= LOSS_RANGE[1]


class Reward(Protocol):
    """Judges the intervals of an episode, one after the other."""

    @property
    def limits(self) -> tuple[float, float]:
        """Losses at or beyond them are all alike to it."""
        ...

    def reset(self, opening: IntervalStatistics) -> None:
        """Begin an episode with the interval that was run before the first action."""
        ...

    def __call__(self, statistics: IntervalStatistics, elapsed_seconds: float) -> float:
        """Reward of the interval that ends ``elapsed_seconds`` after the beginning of the run."""
        ...


class LogLossReward:
    """discount^elapsed · (ℓ_{k−1} − ℓ_k), ℓ_k the log-loss after interval k.

    ℓ_k is ln L_k, L_k the mean loss of the interval, or a moving average of it over seconds. Late in training the
    means of ten iterations each differ by a third: an episode's return then says more of its last interval than of
    what was decided in it. An average in seconds, unlike one over intervals, lags behind alike at all widths.

    Without discount an episode's rewards add up to ℓ_0 − ℓ at the end of the budget. An interval that ends past the
    budget counts with the share of its seconds that lay inside, so that a slow last step, at a width that time no
    longer allows, earns nothing extra.

    Args:
        discount_per_second: factor per second, above 0 and at most 1.
        budget_seconds: length of the episode; None is unlimited.
        smoothing_seconds: time constant of the moving average; 0 for none.
    """

    limits = LOSS_RANGE

    def __init__(
        self,
        discount_per_second: float = 1.0,
        budget_seconds: float | None = None,
        smoothing_seconds: float = 0.0,
    ) -> None:
        self.discount_per_second = discount_per_second
        self.budget_seconds = budget_seconds
        self.smoothing_seconds = smoothing_seconds
        self._level = 0.0

    def reset(self, opening: IntervalStatistics) -> None:
        """Raises ValueError for a finite loss that has no logarithm, or whose drop would be rewarded with 0."""
        self._level = log_loss(opening.loss)
        low, high = self.limits
        if math.isfinite(opening.loss) and opening.loss <= low:
            raise ValueError(
                f"the training loss is {opening.loss:g}, and its logarithm, whose drop is the reward, is taken of "
                f"losses between {low:g} and {high:g} only: add a constant to the workload's loss, or multiply it by "
                "one, or give reward='authors'"
            )

    def __call__(self, statistics: IntervalStatistics, elapsed_seconds: float) -> float:
        share = self._share_inside(statistics.seconds, elapsed_seconds)
        if self.smoothing_seconds > 0:
            share = -math.expm1(-share * statistics.seconds / self.smoothing_seconds)
        drop = share * (self._level - log_loss(statistics.loss))
        self._level -= drop
        return float(self.discount_per_second**elapsed_seconds * drop)

    def _share_inside(self, seconds: float, elapsed_seconds: float) -> float:
        if self.budget_seconds is None or elapsed_seconds <= self.budget_seconds:
            return 1.0
        over = elapsed_seconds - self.budget_seconds
        return 1.0 - over / seconds if over < seconds else 0.0


class AuthorsReward:
    """MQGrad's reward, −300 · slope / (5 + 5·b) (Cui et al., ICTIR 2018).

    ``slope`` is that of the last 5 smoothed losses, see :func:`mqgrad.controllers.sarsa.slope_reward`.
    """

    limits = (-SMOOTHED_LIMIT, SMOOTHED_LIMIT)

    def reset(self, opening: IntervalStatistics) -> None:
        self._smoothed = SmoothedLosses(5)
        self._smoothed.extend(opening.losses)

    def __call__(self, statistics: IntervalStatistics, elapsed_seconds: float) -> float:
        self._smoothed.extend(statistics.losses)
        return slope_reward(self._smoothed.values, statistics.bits)


def make_reward(settings: BitWidthSettings) -> Reward:
    """The reward that an environment's settings ask for."""
    if settings.reward == "authors":
        return AuthorsReward()
    return LogLossReward(settings.discount_per_second, settings.budget_seconds, settings.smoothing_seconds)
