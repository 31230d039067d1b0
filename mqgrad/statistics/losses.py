"""Losses as they are compared: their logarithm, and MQGrad's moving average."""

import math
from collections.abc import Sequence

from .moving_average import ewma

SMOOTHED_LIMIT = 1e3  # authors' losses are not normalised; this only keeps a diverged run finite
LOSS_RANGE = (1e-6, 1e18)  # the loss is held inside before its logarithm is taken; squared dollars are large
_KEEP = 0.9  # share of the old value in the authors' smoothing


class SmoothedLosses:
    """The last ``length`` values of MQGrad's average of per-iteration losses, 0.9 old + 0.1 new."""

    def __init__(self, length: int, values: Sequence[float] = ()) -> None:
        self.values = list(values)
        self._length = length

    def extend(self, losses: Sequence[float]) -> None:
        """Append one smoothed value per loss; the first loss of a run starts the average."""
        for loss in losses:
            loss = held_within(loss, -SMOOTHED_LIMIT, SMOOTHED_LIMIT)
            self.values.append(ewma(self.values[-1] if self.values else None, loss, _KEEP))
        del self.values[: -self._length]

    def window(self) -> list[float]:
        """``length`` values; the oldest one stands for those before the run, and 0 before there is one."""
        known = self.values or [0.0]
        return [known[0]] * (self._length - len(known)) + known

    def state_dict(self) -> list[float]:
        """The values."""
        return list(self.values)

    def load_state_dict(self, state: Sequence[float]) -> None:
        """Restore what ``state_dict`` returned."""
        self.values = list(state)


def log_loss(loss: float) -> float:
    """ln(loss), the loss held in :data:`LOSS_RANGE`; NaN counts as the largest."""
    return math.log(held_within(loss, *LOSS_RANGE))


def held_within(value: float, low: float, high: float, nan: float | None = None) -> float:
    """The number in [low, high] that is nearest; NaN counts as the highest, or as ``nan``."""
    if math.isnan(value):
        return high if nan is None else nan
    return min(max(value, low), high)
