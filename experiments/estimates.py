"""Means over seeds with their uncertainty, and ratios of times."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats  # type: ignore[import-untyped]

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean over seeds and its 95 % confidence interval (Student's t); no interval from one seed."""

    value: float
    low: float | None = None
    high: float | None = None


class Bound(NamedTuple):
    """A ratio, or a lower bound of it."""

    value: float
    exact: bool


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


def paired_ratio(times: dict[int, float], reference: dict[int, float]) -> Estimate | None:
    """Geometric mean over the common seeds of ``times / reference``: the same seed has the same initial weights and
    data order, so pairing takes their influence out."""
    logs = [math.log(times[seed] / reference[seed]) for seed in times if seed in reference]
    estimate = mean_with_interval(logs)
    if estimate is None:
        return None
    if estimate.low is None or estimate.high is None:
        return Estimate(math.exp(estimate.value))
    return Estimate(math.exp(estimate.value), math.exp(estimate.low), math.exp(estimate.high))


def mean_of_bounds(bounds: Sequence[Bound | None]) -> Bound | None:
    """Geometric mean; a bound if one of them is, and None if one of them is None, or of nothing."""
    known = [bound for bound in bounds if bound is not None]
    if not known or len(known) < len(bounds):
        return None
    value = statistics.geometric_mean(bound.value for bound in known)
    return Bound(value, all(bound.exact for bound in known))
