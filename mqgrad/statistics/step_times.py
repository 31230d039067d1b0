"""How long an iteration takes at a width, learned from the widths that a run has used."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..saved_state import check_keys
from ..widths import UNCODED, Width
from .interval import IntervalStatistics
from .losses import held_within

_FIXED_DRIFT, _SLOPE_DRIFT, _CODING_DRIFT = 0.05, 0.1, 0.2  # relative standard deviations, per interval
_REROUTED = 0.15  # relative standard deviation of a by ln(bytes), where codes go another way
_RELATIVE_ERROR = 0.7  # of the seconds of one iteration; of n, an n-th of it
_SURPRISE = 3  # standard deviations of what is expected of an interval, beyond which the link has changed
_MOST_OVERHEAD = 0.25  # relative to what the first interval waited for
_OPTIMISM, _LEAST_SLOPE = 1.0, 0.2  # standard deviations, and relative to the mean
_CODING_OPTIMISM, _MOST_CODING = 0.25, 0.5  # standard deviations, and relative to what no width changes
_SECONDS = (1e-9, 1e9)

FloatArray = npt.NDArray[np.float64]


class StepTimes:
    """Seconds of an iteration at b bits as a + c·b + d, tracked by a Kalman filter whose state is (a, c, d).

    d is what it costs to travel coded, and 0 at 32 bits: to encode and decode, and that the exchange of codes is
    another one than the all-reduce. One width cannot tell how much of an iteration waits for bytes, for ranks also
    wait for one another, most where they share cores, and every collective has its overheads; several widths can.

    1. The first interval gives a + c·b + d: a what was not waited for and the measured latency, d what encoding and
       decoding took, c·b the rest, though how much of that belongs to a is uncertain. d is uncertain by its own size.
       (A run that begins at 32 bits begins d with its first codes.) Latency counts up to a quarter of the waiting:
       the first small collectives, by which it is measured, wait for the slowest rank as well. Where a then is too
       small, fewer bits are tried, which costs little and shows it; where it is too large, they are not.
    2. Where rounds of local iterations have become longer or shorter, a follows by what they compute. Where codes are
       gathered that went through shards, or the other way round, b counts by the bytes, and a is less certain: there
       is another number of collectives to wait for.
    3. All three drift from interval to interval, c more than a: a link's rate changes. d, of which a run that stays
       on one side of 32 bits learns nothing, drifts until it is as uncertain as it is large again.
    4. Each interval corrects all three, by how uncertain they are. The seconds of n iterations count with a relative
       error of 0.7/n: beyond chance, the first ones of a run take longer than the rest.
    5. Where they are further from what was expected than three standard deviations, the link has changed: c then is
       uncertain by all of the difference. That is why c may drift slowly in between, and little is tried in vain.
    6. What is then expected of other widths is :func:`optimistic_seconds`.
    """

    def __init__(self) -> None:
        self._mean = np.zeros(3)
        self._covariance = np.zeros((3, 3))
        self._bits = 0.0  # of the last interval, as the next two
        self._period, self._computed = 1, 0.0
        self._relative_bytes = 1.0

    @property
    def fixed_seconds(self) -> float:
        """Seconds of an iteration that do not depend on the width; with those of coding, if the last one was coded.

        0 before the first interval.
        """
        return float(self._mean[0] + _coded(self._bits) * self._mean[2])

    @property
    def seconds_per_bit(self) -> float:
        """c of a code, the mean, the way that codes go now."""
        return float(self._mean[1]) * self._relative_bytes

    @property
    def slope_deviation(self) -> float:
        """Standard deviation of that."""
        return self._deviation(1) * self._relative_bytes

    @property
    def coding_seconds(self) -> float:
        """What d may well be, its mean and a quarter of its deviation; at most half of the fixed seconds."""
        seconds = float(self._mean[2]) + _CODING_OPTIMISM * self._deviation(2)
        return min(seconds, _MOST_CODING * self.fixed_seconds)

    def _deviation(self, index: int) -> float:
        return math.sqrt(max(float(self._covariance[index, index]), 0.0))

    def seconds(self, bits: Width) -> float:
        """Seconds to expect of an iteration at ``bits``: see :func:`optimistic_seconds`."""
        slope, deviation = float(self._mean[1]), self._deviation(1)
        learned = self.fixed_seconds, slope, deviation, self.coding_seconds, self._relative_bytes
        return float(optimistic_seconds(np.array(float(bits)), np.array(self._bits), *map(np.array, learned)))

    def observe(self, statistics: IntervalStatistics) -> None:
        """Take in one interval. Seconds are held in 1e-9 to 1e9; one with a NaN is left out."""
        coding = statistics.encode_seconds + statistics.decode_seconds
        known = statistics.step_seconds, statistics.compute_seconds, statistics.fixed_wire_seconds, coding
        if not statistics.losses or any(map(math.isnan, known)):
            return
        seconds, computed, overhead, coding = (held_within(each, *_SECONDS) for each in known)
        bits, least = statistics.mean_bits, min(computed, seconds)
        relative_bytes = statistics.coding.relative_bytes
        sent = _sent(bits, relative_bytes)
        begins_coding = _coded(bits) and self._covariance[2, 2] == 0
        first_coding = min(coding, seconds - least) if begins_coding else 0.0
        if self._bits > 0:
            if statistics.period != self._period:
                self._shift(computed - self._computed)
            if relative_bytes != self._relative_bytes:
                deviation = _REROUTED * math.log(relative_bytes / self._relative_bytes) * self._mean[0]
                self._covariance[0, 0] += deviation**2
            self._drift()
        else:
            self._begin(seconds - first_coding, least, overhead, len(statistics.losses), sent)
        if begins_coding:
            self._begin_coding(first_coding)
        self._correct(seconds, len(statistics.losses), sent, _coded(bits))
        self._bound(least, sent, _coded(bits), coding)
        self._bits, self._period, self._computed = bits, statistics.period, computed
        self._relative_bytes = relative_bytes

    def _shift(self, seconds: float) -> None:
        self._mean[0] = max(self._mean[0] + seconds, 0.0)
        self._covariance[0, 0] += (_FIXED_DRIFT * seconds) ** 2

    def _begin(self, seconds: float, computed: float, overhead: float, iterations: int, bits: float) -> None:
        waited = seconds - computed
        fixed = computed + min(overhead, _MOST_OVERHEAD * waited)
        self._mean[:2] = fixed, (seconds - fixed) / bits
        self._covariance[:2, :2] = (waited / 2) ** 2 * np.array([[1, -1 / bits], [-1 / bits, 1 / bits**2]])
        self._covariance[0, 0] += (fixed / iterations) ** 2

    def _begin_coding(self, seconds: float) -> None:
        counted_before = -1.0 if self._bits == 0 else 0.0  # in a first interval, what is not d is a
        direction = np.array([counted_before, 0.0, 1.0])
        self._mean[2] = seconds
        self._covariance += seconds**2 * np.outer(direction, direction)

    def _drift(self) -> None:
        fixed, slope, coding = self._mean
        slope, coding = np.maximum((slope, coding), fixed / 32)  # what is 0 can become more, and matter
        known = float(self._covariance[2, 2])  # 0 before the first codes
        forgotten = _CODING_DRIFT**2 * max(coding**2 - known, 0.0) if known > 0 else 0.0
        self._covariance += np.diag([(_FIXED_DRIFT * fixed) ** 2, (_SLOPE_DRIFT * slope) ** 2, forgotten])

    def _correct(self, seconds: float, iterations: int, bits: float, coded: float) -> None:
        row = np.array([1.0, bits, coded])
        expected = row @ self._mean
        surprise, error_sq = seconds - expected, (_RELATIVE_ERROR * expected / iterations) ** 2
        if surprise**2 > _SURPRISE**2 * (row @ self._covariance @ row + error_sq):
            self._covariance[1, 1] += (surprise / bits) ** 2
        seen = self._covariance @ row
        gain = seen / (row @ seen + error_sq)
        self._mean = self._mean + gain * surprise
        self._covariance = self._covariance - np.outer(gain, seen)

    def _bound(self, least: float, bits: float, coded: float, coding: float) -> None:
        """No seconds below ``least``, none that fall with the width, no gain by coding, the same sum at ``bits``."""
        total = max(float(self._mean @ (1.0, bits, coded)), least)
        slope = min(max(float(self._mean[1]), 0.0), (total - least) / bits)
        mean = max(float(self._mean[2]), 0.0)
        if coded:
            # Buckets are coded beside backward, on cores or a GPU that both share: what was not waited for holds some
            # coding too. So it bounds a + d, and a only less what coding took, which is the most that it can delay.
            mean = min(mean, total - slope * bits - max(least - coding, 0.0))
        self._mean = np.array([total - slope * bits - coded * mean, slope, mean])

    def state_dict(self) -> dict[str, list[float]]:
        """State as plain types."""
        return {
            "mean": self._mean.tolist(),
            "covariance": self._covariance.ravel().tolist(),
            "bits": [self._bits],
            "period": [self._period],
            "computed": [self._computed],
            "relative_bytes": [self._relative_bytes],
        }

    def load_state_dict(self, state: dict[str, Sequence[float]]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, self.state_dict(), "the seconds by width")
        self._mean = np.array(state["mean"], dtype=np.float64).reshape(3)
        self._covariance = np.array(state["covariance"], dtype=np.float64).reshape(3, 3)
        (self._bits,) = state["bits"]
        (self._period,), (self._computed,) = map(int, state["period"]), state["computed"]
        (self._relative_bytes,) = state["relative_bytes"]


def optimistic_seconds(
    bits: FloatArray,
    in_use: FloatArray,
    fixed: FloatArray,
    slope: FloatArray,
    deviation: FloatArray,
    coding: FloatArray,
    relative_bytes: FloatArray | float = 1.0,
) -> FloatArray:
    """Seconds at ``bits`` as seen from the width in use, in favour of what has long not been tried.

    fixed + c·b, but more bits than those in use at a c that is lower by a standard deviation, at most by four
    fifths; and ``coding`` less at 32 bits where codes are in use, more at codes where 32 bits are.

    So more bits, when they have long not been tried, seem less and less slow until they are tried: optimism in the
    face of uncertainty. Fewer bits need none: a begins near the least that it can be. Float64 arrays that broadcast;
    c is of bits that go through shards, ``relative_bytes`` what codes send in relation to that.
    """
    optimistic = np.maximum(slope - _OPTIMISM * deviation, _LEAST_SLOPE * slope)
    sent, sent_now = _sent(bits, relative_bytes), _sent(in_use, relative_bytes)
    by_width = slope * sent_now + np.where(sent > sent_now, optimistic, slope) * (sent - sent_now)
    return fixed + by_width + coding * (_coded(bits) - _coded(in_use))


def _coded(bits: FloatArray | float) -> Any:
    """1 at widths that are coded, 0 at 32 bits; as what is given."""
    return np.less(bits, UNCODED).astype(np.float64)


def _sent(bits: FloatArray | float, relative_bytes: FloatArray | float) -> Any:
    """Bits that would send as many bytes through shards as these do the way that codes go; as what is given."""
    return bits * np.where(_coded(bits), relative_bytes, 1.0)
