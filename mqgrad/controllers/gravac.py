"""GraVAC, transcribed from compression factors to bit widths."""

import dataclasses
from typing import ClassVar

from ..checks import check_count, check_decay, check_range
from ..gain_search import stepped
from ..statistics.interval import IntervalStatistics, Trial
from ..statistics.moving_average import ewma
from ..widths import TIMED_WIDTHS, Width
from .rule import WidthRule, usable

_SHORTEST_STEP = 1e-9  # seconds; keeps a throughput finite


@dataclasses.dataclass(kw_only=True, slots=True)
class GraVAC(WidthRule):
    """Search for the fewest bits that keep the gain, then for the best throughput × gain (Tyagi & Swany 2023).

    With the gain δ(b), the safe width θ_min and the candidate θ_s·θ_min:

    1. Send the candidate if δ ≥ ε there, else the safe width if δ ≥ ε there, else the widest one (dense).
    2. Every ``window`` decisions: if |δ_safe − δ_candidate|/δ_safe ≤ ω, the candidate becomes the safe width.
    3. If the two best δ·throughput of the widths tried, but for the dense one, differ by ≤ ω, or no candidate is
       left, freeze the best: from then on it is sent where its δ ≥ ε.
    4. Else the candidate goes one width down.

    Transcribed: the published gain, ‖compressed‖²/‖gradient‖², passes 1 for unbiased quantizers, so the gain here
    is cos²(g, Q(g)) of a rank's gradient g, without feedback, which for a selection of elements is the published one.
    It is measured at every width by a trial compression, once an interval. Compressors without trials are taken to be
    unbiased, with the error that their law gives: cos² = 1/(1 + q(b)/‖g‖²).
    """

    wants_parameters: ClassVar[bool] = True

    widths: tuple[Width, ...] = TIMED_WIDTHS
    """Widths to choose from, increasing; the last is the dense one."""
    start: Width = 8
    """The first safe width."""
    least_gain: float = 0.7
    """ε; the paper uses 0.7 and 0.9."""
    tolerance: float = 0.01
    """ω."""
    window: int = 10
    """Decisions between two steps of the search; the paper steps every 500 to 2000 iterations."""
    keep: float = 0.9
    """Share of the old value in the averages of gain and throughput."""
    safe: Width = dataclasses.field(init=False, default=0)
    """State: θ_min as a width."""
    candidate: Width = dataclasses.field(init=False, default=0)
    """State: θ_s·θ_min as a width."""
    is_frozen: bool = dataclasses.field(init=False, default=False)
    """State: whether the search is over."""
    made: int = dataclasses.field(init=False, default=0)
    """State: decisions made."""
    gains: list[float | None] = dataclasses.field(init=False, default_factory=list)
    """State: EWMA of δ of each width."""
    throughputs: list[float | None] = dataclasses.field(init=False, default_factory=list)
    """State: EWMA of the iterations per second at each width, None where it was not tried."""

    def prepare(self) -> None:
        check_range(0, 1, least_gain=self.least_gain, tolerance=self.tolerance)
        check_count(window=self.window)
        check_decay(keep=self.keep)
        self.safe, self.candidate = self.start, self.narrower(self.start)
        self.gains = [None] * len(self.widths)
        self.throughputs = [None] * len(self.widths)

    @property
    def trial_widths(self) -> tuple[Width, ...]:
        """All that it chooses from."""
        return self.widths

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """Measure, take a step of the search where one is due, and send what is good enough."""
        figures = (statistics.rank_norm_sq, statistics.gradient_noise, statistics.peak_energy)
        trials = (figure for p in statistics.parameters for trial in p.trials for figure in trial)
        if not usable(*figures, statistics.step_seconds, *trials):
            return None
        self._measure(statistics)
        self.made += 1
        if not self.is_frozen and self.made % self.window == 0:
            self._step()
        good = (bits for bits in (self.candidate, self.safe) if self._gain(bits) >= self.least_gain)
        return next(good, self.widths[-1])

    def _measure(self, statistics: IntervalStatistics) -> None:
        for i, bits in enumerate(self.widths):
            trials = [p.trials[i] for p in statistics.parameters if p.trials]
            gain = measured_cosine(statistics, trials) if trials else squared_cosine(statistics, bits)
            self.gains[i] = ewma(self.gains[i], gain, self.keep)
        if statistics.bits in self.widths:
            i = self.widths.index(statistics.bits)
            rate = statistics.period / max(statistics.step_seconds, _SHORTEST_STEP)
            self.throughputs[i] = ewma(self.throughputs[i], rate, self.keep)

    def _step(self) -> None:
        tried = zip(self.widths[:-1], self.throughputs[:-1], strict=True)  # dense is what to fall back to
        self.safe, self.candidate, self.is_frozen = stepped(
            self.safe,
            self.candidate,
            self.narrower(self.candidate),
            gains={bits: self._gain(bits) for bits in self.widths},
            throughputs={bits: rate for bits, rate in tried if rate is not None},
            tolerance=self.tolerance,
        )

    def _gain(self, bits: Width) -> float:
        gain = self.gains[self.widths.index(bits)]
        assert gain is not None
        return gain


def measured_cosine(statistics: IntervalStatistics, trials: list[Trial]) -> float:
    """cos²(g, Q(g)) of all parameters together, by ⟨g, Q⟩ = (‖g‖² + ‖Q‖² − ‖Q − g‖²)/2; 1 for a zero gradient."""
    norm_sq = sum(p.norm_sq for p in statistics.parameters)
    sent_sq, error_sq = sum(trial.norm_sq for trial in trials), sum(trial.error_sq for trial in trials)
    if norm_sq * sent_sq == 0:
        return float(norm_sq == 0)
    return ((norm_sq + sent_sq - error_sq) / 2) ** 2 / (norm_sq * sent_sq)


def squared_cosine(statistics: IntervalStatistics, bits: Width) -> float:
    """cos²(g, Q(g)) = 1/(1 + q(b)/‖g‖²) of one rank's gradient, for an unbiased Q; 1 for a zero gradient.

    q is W times the figure q/W of the mean.
    """
    norm_sq, noise = statistics.rank_norm_sq, statistics.world_size * statistics.coding_noise(bits)
    return norm_sq / (norm_sq + noise) if norm_sq + noise > 0 else 1.0
