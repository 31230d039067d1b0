"""How long an iteration takes at a width, learned from the widths that a run has used."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .saved_state import check_keys
from .statistics import IntervalStatistics
from .widths import Width

_FIXED_DRIFT, _SLOPE_DRIFT = 0.05, 0.3  # relative standard deviations, per interval
_LEAST_SLOPE = 0.2  # relative to the mean
_SECONDS = (1e-9, 1e9)

FloatArray = npt.NDArray[np.float64]


class StepTimes:
    """Seconds of an iteration at b bits as a + c·b, tracked by a Kalman filter whose state is (a, c).

    One width cannot tell how much of an iteration waits for bytes: ranks also wait for one another, most where they
    share cores, and every collective has its overheads. What several widths took can.

    1. The first interval gives a + c·b: a what was not waited for and the measured latency, c·b the rest, though how
       much of that belongs to a is uncertain.
    2. Both drift from interval to interval, c more than a: a link's rate changes.
    3. Each interval corrects both, by how uncertain they are. The seconds of n iterations count with a relative error
       of 1/n: beyond chance, the first ones of a run take longer than the rest.
    4. What is then expected of other widths is :func:`optimistic_seconds`.
    """

    def __init__(self) -> None:
        self._mean = np.zeros(2)
        self._covariance = np.zeros((2, 2))
        self._bits = 0.0  # of the last interval

    @property
    def fixed_seconds(self) -> float:
        """a, the mean: seconds of an iteration that do not depend on the width; 0 before the first interval."""
        return float(self._mean[0])

    @property
    def seconds_per_bit(self) -> float:
        """c, the mean."""
        return float(self._mean[1])

    @property
    def slope_deviation(self) -> float:
        """Standard deviation of c."""
        return math.sqrt(max(float(self._covariance[1, 1]), 0.0))

    def seconds(self, bits: Width) -> float:
        """Seconds to expect of an iteration at ``bits``: see :func:`optimistic_seconds`."""
        learned = self.fixed_seconds, self.seconds_per_bit, self.slope_deviation
        return float(optimistic_seconds(np.array(float(bits)), np.array(self._bits), *map(np.array, learned)))

    def observe(self, statistics: IntervalStatistics) -> None:
        """Take in one interval. Seconds are held in 1e-9 to 1e9; one with a NaN is left out."""
        known = (statistics.step_seconds, statistics.compute_seconds, statistics.fixed_wire_seconds)
        if not statistics.losses or any(map(math.isnan, known)):
            return
        seconds, computed, overhead = map(_held, known)
        least = min(computed, seconds)
        if self._bits == 0.0:
            self._begin(seconds, least, overhead, statistics)
        else:
            self._drift()
        self._correct(seconds, len(statistics.losses), statistics.mean_bits)
        self._bound(least, statistics.mean_bits)
        self._bits = statistics.mean_bits

    def _begin(
        self, seconds: float, computed: float, overhead: float, statistics: IntervalStatistics
    ) -> None:
        bits, waited = statistics.mean_bits, seconds - computed
        fixed = computed + min(overhead, waited)
        self._mean = np.array([fixed, (seconds - fixed) / bits])
        self._covariance = (waited / 2) ** 2 * np.array([[1, -1 / bits], [-1 / bits, 1 / bits**2]])
        self._covariance[0, 0] += (fixed / len(statistics.losses)) ** 2

    def _drift(self) -> None:
        fixed, slope = self._mean
        slope_scale = max(slope, fixed / 32)  # a slope of 0 can become one that matters
        self._covariance += np.diag([(_FIXED_DRIFT * fixed) ** 2, (_SLOPE_DRIFT * slope_scale) ** 2])

    def _correct(self, seconds: float, iterations: int, bits: float) -> None:
        row = np.array([1.0, bits])
        expected, seen = row @ self._mean, self._covariance @ row
        gain = seen / (row @ seen + (expected / iterations) ** 2)
        self._mean = self._mean + gain * (seconds - expected)
        self._covariance = self._covariance - np.outer(gain, seen)

    def _bound(self, least: float, bits: float) -> None:
        """No seconds below ``least`` and none that fall with the width, with the same sum at ``bits``."""
        total = max(float(self._mean @ (1.0, bits)), least)
        slope = min(max(float(self._mean[1]), 0.0), (total - least) / bits)
        self._mean = np.array([total - slope * bits, slope])

    def state_dict(self) -> dict[str, list[float]]:
        """State as plain types."""
        return {
            "mean": self._mean.tolist(),
            "covariance": self._covariance.ravel().tolist(),
            "bits": [self._bits],
        }

    def load_state_dict(self, state: dict[str, Sequence[float]]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, self.state_dict(), "the seconds by width")
        self._mean = np.array(state["mean"], dtype=np.float64).reshape(2)
        self._covariance = np.array(state["covariance"], dtype=np.float64).reshape(2, 2)
        (self._bits,) = state["bits"]


def optimistic_seconds(
    bits: FloatArray, in_use: FloatArray, fixed: FloatArray, slope: FloatArray, deviation: FloatArray
) -> FloatArray:
    """a + c·b, but more bits than those in use at a c that is lower by a standard deviation, at most by four fifths.

    So more bits, when they have long not been tried, seem less and less slow until they are tried: optimism in the
    face of uncertainty. Fewer bits need none: a begins at the least that it can be. Arrays of float64 that broadcast.
    """
    optimistic = np.maximum(slope - deviation, _LEAST_SLOPE * slope)
    seconds: FloatArray = (
        fixed + slope * in_use + np.where(bits > in_use, optimistic, slope) * (bits - in_use)
    )
    return seconds


def _held(seconds: float) -> float:
    return min(max(seconds, _SECONDS[0]), _SECONDS[1])
