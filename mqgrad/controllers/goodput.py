"""The goodput rule: useful progress per second."""

import dataclasses

from ..statistics import IntervalStatistics
from ..step_times import StepTimes
from ..widths import Width
from .rule import TIMED_WIDTHS, WidthRule, check_keep, ewma, usable


@dataclasses.dataclass(kw_only=True, slots=True)
class Goodput(WidthRule):
    """The width with the most statistical efficiency per second, both measured in the run itself.

        goodput(b) = S/(S + V/W + q(b)/W) ÷ seconds(b)

    S is the squared norm of the true gradient, V the variance between ranks, q(b) the noise expected of the
    compressor's code at width b (``IntervalStatistics.quantization_noise``), all of the mean over W ranks;
    seconds(b) are an iteration's, as :class:`mqgrad.step_times.StepTimes` learns them from the widths used. This
    project's own rule, after the efficiency of Pollux (Qiao et al., OSDI 2021) and McCandlish et al. 2018, with
    quantization as one more noise.

    Not in the formula: error feedback, which repays part of q(b) in later iterations, and that one code takes longer
    to compute than another.
    """

    widths: tuple[Width, ...] = TIMED_WIDTHS
    """Widths to choose from, increasing."""
    opening: int | None = 2
    """Iterations before the first decision: what it needs can be measured at once, and the start is a guess."""
    keep: float = 0.9
    """Share of the old value in the averages of S, V and q, per decision."""
    signal: float | None = dataclasses.field(init=False, default=None)
    """State: EWMA of S."""
    noise: float | None = dataclasses.field(init=False, default=None)
    """State: EWMA of V/W."""
    peak_energy: float | None = dataclasses.field(init=False, default=None)
    """State: EWMA of what q(b)/W is proportional to."""
    times: StepTimes = dataclasses.field(init=False, default_factory=StepTimes, compare=False)
    """State: what the widths used so far took."""

    def prepare(self) -> None:
        check_keep(self.keep)

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """The width of the highest goodput; the current one while a gradient is zero or no time passes."""
        if not usable(
            statistics.mean_norm_sq,
            statistics.gradient_noise,
            statistics.peak_energy,
            statistics.step_seconds,
            statistics.compute_seconds,
        ):
            return None
        smoothed = self._smooth(statistics)
        self.times.observe(statistics)
        goodputs = {bits: relative_goodput(smoothed, self.times, bits) for bits in self.widths}
        best = max(goodputs, key=lambda bits: goodputs[bits])
        return best if goodputs[best] > 0 else None

    def _smooth(self, statistics: IntervalStatistics) -> IntervalStatistics:
        self.signal = ewma(self.signal, statistics.gradient_signal, self.keep)
        self.noise = ewma(self.noise, statistics.gradient_noise, self.keep)
        self.peak_energy = ewma(self.peak_energy, statistics.peak_energy, self.keep)
        return dataclasses.replace(
            statistics, gradient_signal=self.signal, gradient_noise=self.noise, peak_energy=self.peak_energy
        )


def relative_goodput(statistics: IntervalStatistics, times: StepTimes, bits: Width) -> float:
    """Goodput at a width, divided by S; 0 where nothing is to be gained or no time passes.

    S in the numerator is the same at every width. Without it the comparison needs only S + V/W = ‖ḡ‖², which is
    known well where S alone is not: S is a small difference of large figures, and may be estimated as negative.
    """
    seconds = times.seconds(bits)
    squares = statistics.mean_norm_sq + statistics.quantization_noise(bits)
    return 1 / (squares * seconds) if squares * seconds > 0 else 0.0
