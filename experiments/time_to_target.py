"""When a run's held-out loss first reached a target, told from evaluations that are some time apart."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from .estimates import mean_loss

_WINDOW = 0.1  # of the iterations so far, to both sides


class LossCurve(NamedTuple):
    """Held-out loss of a run, one entry a point that it was looked at."""

    iterations: Sequence[int]
    seconds: Sequence[float]
    """Of training, evaluations excluded."""
    losses: Sequence[float | None]
    """None where not finite."""
    finished: bool
    """Whether the run came to its end: one that diverges later has not got to where it was before."""

    @property
    def smoothed(self) -> list[float | None]:
        """By :func:`smoothed`."""
        return smoothed(self.iterations, self.losses)

    @property
    def late(self) -> float | None:
        """By :func:`late_loss`; None of a run that was cut off before its first point."""
        return late_loss(self.iterations, self.losses) if self.iterations else None

    def seconds_to(self, loss: float) -> float | None:
        """Seconds until the smoothed loss first was at or below ``loss``, by :func:`first_reached`; None if it never
        was, or if the run did not finish."""
        return first_reached(self.seconds, self.smoothed, loss) if self.finished else None

    def iterations_to(self, loss: float) -> float | None:
        """Iterations in the place of seconds."""
        return first_reached(self.iterations, self.smoothed, loss) if self.finished else None


def smoothed(iterations: Sequence[int], losses: Sequence[float | None]) -> list[float | None]:
    """Each loss as the mean of all within 10 % of its iterations: geometric, or arithmetic where one is not positive.

    A single evaluation may lie far below those around it, and would count as the first that reached a target. By
    iterations, not by evaluations, of which methods that average now and then have fewer. None where one of them is
    not known.
    """
    return [_mean_within(at * (1 - _WINDOW), at * (1 + _WINDOW), iterations, losses) for at in iterations]


def late_loss(iterations: Sequence[int], losses: Sequence[float | None]) -> float | None:
    """Loss over the last tenth of the iterations, whose single evaluations differ by a factor of two: geometric mean,
    or arithmetic where some loss is not positive. None where none is known."""
    late = [at > (1 - _WINDOW) * iterations[-1] for at in iterations]
    mean = mean_loss([loss for loss in itertools.compress(losses, late) if loss is not None])
    return None if mean is None else mean.value


def _mean_within(
    first: float, last: float, iterations: Sequence[int], losses: Sequence[float | None]
) -> float | None:
    near = [loss for at, loss in zip(iterations, losses, strict=True) if first <= at <= last]
    known = [loss for loss in near if loss is not None and math.isfinite(loss)]
    if len(known) < len(near):
        return None
    return statistics.geometric_mean(known) if min(known) > 0 else statistics.fmean(known)


class _Evaluation(NamedTuple):
    at: float
    loss: float


def first_reached(at: Sequence[float], losses: Sequence[float | None], target: float) -> float | None:
    """When the loss first was at or below the target; None if no evaluation shows it.

    Some systems are looked at after every second iteration, others four times as seldom: to count the whole way to
    an evaluation would favour the former. So ln(loss) is interpolated linearly between the first evaluation at or
    below the target and the one before; the loss itself, where it is not positive. If there is none before, or its
    loss is not known, the time is that of the evaluation.

    Args:
        at: seconds or iterations of each evaluation, increasing.
        losses: held-out, of each; None or not finite where not known.
        target: what the loss is to reach.
    """
    before = None
    for when, loss in zip(at, losses, strict=True):
        if loss is None or not math.isfinite(loss):
            before = None
        elif loss > target:
            before = _Evaluation(when, loss)
        else:
            return when if before is None else _between(before, _Evaluation(when, loss), target)
    return None


def _between(before: _Evaluation, after: _Evaluation, target: float) -> float:
    ratio = before.loss / after.loss if after.loss > 0 else math.inf
    if ratio < math.inf:
        share = math.log(before.loss / target) / math.log(ratio)
    else:
        share = (before.loss - target) / (before.loss - after.loss)
    return before.at + share * (after.at - before.at)
