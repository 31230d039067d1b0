"""From the statistics of one interval after another to observations."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..saved_state import SavesFields
from ..statistics.interval import IntervalStatistics
from ..statistics.losses import SmoothedLosses, held_within, log_loss
from ..statistics.smoothed_gradient import SmoothedGradient
from ..statistics.step_times import StepTimes
from .observation import LEAST_LOG_EFFICIENCY, MOST_NOISE, ObservationSchema


class Observer(SavesFields):
    """Turns the statistics of one interval after another into observations.

    Args:
        schema: layout of the observations.
        budget_seconds: length of the run that progress is measured against; None leaves progress at 0.
        interval: iterations that one entry of the drops is of; None: an interval, however long.
    """

    state_fields = ("elapsed_seconds", "_first_log_loss", "_log_losses", "_smoothed", "times", "_gradient")
    state_owner = "the observer"

    def __init__(
        self, schema: ObservationSchema, budget_seconds: float | None = None, interval: int | None = None
    ) -> None:
        self.schema = schema
        self.budget_seconds = budget_seconds
        self._interval = interval
        self.reset()

    def reset(self) -> None:
        """Forget the run."""
        self.elapsed_seconds = 0.0
        self._first_log_loss: float | None = None
        self._log_losses: list[float] = []
        self._smoothed = SmoothedLosses(self.schema.history)
        self.times = StepTimes()
        self._gradient = SmoothedGradient()

    def observe(self, statistics: IntervalStatistics) -> npt.NDArray[np.float32]:
        """Take in one interval and return the observation after it, float32 [schema.size]."""
        self.elapsed_seconds += held_within(statistics.seconds, 0.0, 1e9, nan=0.0)
        self._smoothed.extend(statistics.losses)
        self.times.observe(statistics)
        self._log_losses += map(log_loss, self._means(statistics.losses))
        del self._log_losses[: -self.schema.history]
        if self._first_log_loss is None:
            self._first_log_loss = self._log_losses[0]
        values = self._loss_part()
        if self.schema.kind == "full":
            values += self._system_part(self._gradient.observe(statistics))
        return np.clip(np.array(values, dtype=np.float32), *self.schema.bounds())

    def _means(self, losses: Sequence[float]) -> list[float]:
        """The mean loss, or of an interval that has been made longer, those of parts as long as one should be. The
        opening is one: as long as it was where the policy learned."""
        is_opening = self._first_log_loss is None
        usual = len(losses) if is_opening or not self._interval else self._interval
        count = max(round(len(losses) / (usual or 1)), 1)
        parts = [losses[k * len(losses) // count : (k + 1) * len(losses) // count] for k in range(count)]
        return [sum(part) / len(part) if part else math.nan for part in parts]

    def _loss_part(self) -> list[float]:
        if self.schema.kind == "authors":
            return self._smoothed.window()
        assert self._first_log_loss is not None
        drops = [a - b for a, b in itertools.pairwise(self._log_losses)]
        missing = self.schema.history - 1 - len(drops)
        return [0.0] * missing + drops + [self._first_log_loss - self._log_losses[-1]]

    def _system_part(self, statistics: IntervalStatistics) -> list[float]:
        fixed = self.times.fixed_seconds
        by_width = self.times.seconds_per_bit, self.times.slope_deviation
        return [
            *(_log_ratio(32 * seconds, fixed, 20.0 / math.log2(10)) * math.log2(10) for seconds in by_width),
            _log_ratio(fixed, 1.0, 6.0),
            self.times.coding_seconds / fixed if fixed > 0 else 0.0,
            _ratio(statistics.gradient_noise, statistics.mean_norm_sq, MOST_NOISE),
            held_within(statistics.update_exponent, 0.0, 1.0),
            *(_log(statistics.efficiency(bits), LEAST_LOG_EFFICIENCY) for bits in self.schema.widths),
            math.log2(statistics.bits) / 5,
            self.elapsed_seconds / self.budget_seconds if self.budget_seconds else 0.0,
        ]


def _log_ratio(numerator: float, denominator: float, limit: float) -> float:
    """log10(numerator / denominator) within ±limit; 0/0 is 0, a NaN in either counts as the highest ratio."""
    if math.isnan(numerator) or math.isnan(denominator):
        return limit
    if numerator <= 0 or denominator <= 0:
        return limit * ((numerator > 0) - (denominator > 0))
    return held_within(math.log10(numerator) - math.log10(denominator), -limit, limit)


def _ratio(numerator: float, denominator: float, limit: float) -> float:
    """numerator / denominator within 0 and limit; 0/0 is 0, a NaN in either counts as the highest ratio."""
    if math.isnan(numerator) or math.isnan(denominator):
        return limit
    if denominator <= 0:
        return limit * (numerator > 0)
    return held_within(numerator / denominator, 0.0, limit)


def _log(efficiency: float, low: float) -> float:
    """ln(efficiency) of at least ``low``, which also stands for NaN."""
    return held_within(math.log(efficiency), low, 0.0) if efficiency > 0 else low
