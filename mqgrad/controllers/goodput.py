"""The goodput rule: useful progress per second."""

import dataclasses

from ..checks import check_decay, check_range
from ..statistics.fallback import Fallback
from ..statistics.interval import LEAST_SECONDS, IntervalStatistics
from ..statistics.smoothed_gradient import SmoothedGradient
from ..statistics.step_times import StepTimes
from ..widths import TIMED_WIDTHS, Width
from .rule import WidthRule, usable

REACH = 4
"""Times the bits in use, which one decision of the goodput rule goes to at most."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Goodput(WidthRule):
    """The width with the most statistical efficiency per second, both measured in the run itself.

        goodput(b) = efficiency(b) ÷ seconds(b)

    efficiency(b) is what noise of the code at width b leaves of an iteration's progress
    (:mod:`mqgrad.statistics.efficiency`), by figures of the gradient and of how the optimizer takes it, averaged
    over decisions; seconds(b) are an iteration's, as :class:`mqgrad.statistics.step_times.StepTimes` learns them from
    the widths used. This project's own rule, after Pollux (Qiao et al., OSDI 2021) and McCandlish et al. 2018, with
    quantization as the noise.

    The formula takes at most four times the bits of the last decision (or the next width, if that is more): what an
    iteration at many bits takes is known from few by a long extrapolation, and a mistake there costs most. Where
    32 bits take no longer, they are in force (:class:`mqgrad.statistics.fallback.Fallback`).

    Not in the formula: that one code takes longer to compute than another.
    """

    widths: tuple[Width, ...] = TIMED_WIDTHS
    """Widths to choose from, increasing."""
    opening: int | None = 2
    """Iterations before the first decision: what it needs can be measured at once, and the start is a guess."""
    least_seconds: float = LEAST_SECONDS
    """Between two decisions: intervals are made longer, up to ten times, where iterations are short."""
    keep: float = 0.9
    """Share of the old value in the averages of the gradient's figures, per decision."""
    falls_back: bool = True
    """Whether 32 bits are in force where they take no longer, and 8 are tried now and then to learn of that."""
    gradient: SmoothedGradient = dataclasses.field(
        init=False, default_factory=SmoothedGradient, compare=False
    )
    """State: those averages."""
    times: StepTimes = dataclasses.field(init=False, default_factory=StepTimes, compare=False)
    """State: what the widths used so far took."""
    fallback: Fallback = dataclasses.field(init=False, default_factory=Fallback, compare=False)
    """State: when 8 bits are tried, and whether 32 take no longer."""

    def prepare(self) -> None:
        check_decay(keep=self.keep)
        check_range(0.0, 3600.0, least_seconds=self.least_seconds)
        self.gradient = SmoothedGradient(self.keep)

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """The width of the highest goodput, or 32 bits, or 8 for a trial; None where nothing can be told."""
        if not usable(
            statistics.mean_norm_sq,
            statistics.gradient_noise,
            statistics.peak_energy,
            statistics.step_seconds,
            statistics.compute_seconds,
        ):
            return None
        smoothed = self.gradient.observe(statistics)
        self.times.observe(statistics)
        choice = within_reach(self.widths, self.bits)
        goodputs = {bits: relative_goodput(smoothed, self.times, bits) for bits in choice}
        best = max(goodputs, key=lambda bits: goodputs[bits])
        decided = best if goodputs[best] > 0 else self.bits
        if not self.falls_back:
            return decided
        return self.fallback.width(decided, statistics, self.times, self.widths)


def within_reach(widths: tuple[Width, ...], bits: Width) -> tuple[Width, ...]:
    """Widths that a decision at ``bits`` may take."""
    limit = max(REACH * bits, next((width for width in widths if width > bits), bits))
    return tuple(width for width in widths if width <= limit)


def relative_goodput(statistics: IntervalStatistics, times: StepTimes, bits: Width) -> float:
    """Goodput at a width, in iterations without quantization noise per second; 0 for a gradient of zero.

    Also 0 where no time passes. Needed of signal and noise is ‖ḡ‖² = S + V/W alone, which is known well where S is
    not: S is a small difference of large figures, and may be estimated as negative.
    """
    seconds = times.seconds(bits)
    return statistics.efficiency(bits) / seconds if statistics.mean_norm_sq > 0 and seconds > 0 else 0.0
