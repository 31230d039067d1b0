"""Means over seeds with their uncertainty, and ratios of times."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Literal, NamedTuple

from scipy import stats  # type: ignore[import-untyped]

CONFIDENCE = 0.95
_LEAST = 1e-12  # in place of 0, which has no logarithm


class Estimate(NamedTuple):
    """A mean over seeds and its 95 % confidence interval (Student's t); no interval from one seed."""

    value: float
    low: float | None = None
    high: float | None = None


class Ratio(NamedTuple):
    """How many times as long something took as a reference, or a bound of that."""

    value: float
    sign: Literal["=", "≥", "≤"] = "="
    low: float | None = None
    """95 % confidence interval of an exact ratio."""
    high: float | None = None


class Timing(NamedTuple):
    """How long the runs of a system took to a target."""

    seconds: Mapping[int, float]
    """By seed; of a run that never got there, all the seconds it was given."""
    missed: Set[int] = frozenset()
    """Seeds of those."""

    @property
    def mean(self) -> float:
        """Geometric mean over seeds."""
        return statistics.geometric_mean(self.seconds.values())


def mean_with_interval(values: Sequence[float]) -> Estimate | None:
    """Mean and Student's t interval; None of nothing."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return Estimate(mean, mean - half, mean + half)


def geometric_mean_with_interval(values: Sequence[float]) -> Estimate | None:
    """Of values ≥ 0, in the logarithm: no interval reaches below 0. None of nothing."""
    return _mapped(math.exp, mean_with_interval([math.log(max(value, _LEAST)) for value in values]))


def mean_loss(values: Sequence[float]) -> Estimate | None:
    """Geometric; arithmetic where some loss is not positive, and has no logarithm. None of nothing."""
    positive = min(values, default=1.0) > 0
    return geometric_mean_with_interval(values) if positive else mean_with_interval(values)


def mean_of_fractions(values: Sequence[float]) -> Estimate | None:
    """As :func:`mean_with_interval`, cut off at 0 and 1 where all values are within; a workload may give percent."""
    if not all(0 <= value <= 1 for value in values):
        return mean_with_interval(values)
    return _mapped(lambda value: min(max(value, 0.0), 1.0), mean_with_interval(values))


def _mapped(function: Callable[[float], float], mean: Estimate | None) -> Estimate | None:
    if mean is None:
        return None
    low, high = (None if end is None else function(end) for end in (mean.low, mean.high))
    return Estimate(function(mean.value), low, high)


def paired_ratio(own: Timing | None, reference: Timing | None) -> Ratio | None:
    """Geometric mean of ``own / reference`` over the common seeds.

    The same seed has the same initial weights and data order, so pairing takes their influence out. If ``own`` missed
    the target on one of them the ratio is a lower bound, if the reference did, an upper one; None if both did or one
    is unknown.
    """
    if own is None or reference is None:
        return None
    seeds = [seed for seed in own.seconds if seed in reference.seconds]
    own_missed, reference_missed = (not each.missed.isdisjoint(seeds) for each in (own, reference))
    if own_missed and reference_missed:
        return None
    mean = geometric_mean_with_interval([own.seconds[seed] / reference.seconds[seed] for seed in seeds])
    if mean is None:
        return None
    if own_missed or reference_missed:
        return Ratio(mean.value, "≥" if own_missed else "≤")
    return Ratio(mean.value, "=", mean.low, mean.high)


def mean_of_ratios(ratios: Sequence[Ratio]) -> Ratio | None:
    """Geometric mean; a bound if some are, of one kind; None if their kinds differ, or of nothing."""
    signs = {ratio.sign for ratio in ratios} - {"="}
    if not ratios or len(signs) > 1:
        return None
    return Ratio(statistics.geometric_mean(ratio.value for ratio in ratios), next(iter(signs), "="))


def sort_key(ratio: Ratio | None) -> tuple[int, float]:
    """Where a time stands among others, the best first: what is known, then bounds, then what has none."""
    if ratio is None:
        return 2, 0.0
    return int(ratio.sign != "="), ratio.value
