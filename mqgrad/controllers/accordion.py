"""Accordion: many bits while the gradient changes fast, few elsewhere."""

import dataclasses
import math

from ..checks import check_count, check_range
from ..statistics.interval import IntervalStatistics
from ..widths import Width
from .rule import WidthRule, usable


@dataclasses.dataclass(kw_only=True, slots=True)
class Accordion(WidthRule):
    """Many bits in critical regimes: where the accumulated norm changed by a share η since last looked at.

    Agarwal et al., MLSys 2021: critical when |‖Δ_old‖ − ‖Δ_new‖| ≥ η·‖Δ_old‖, Δ the gradient accumulated over an
    epoch. Here Δ's norm is the sum of ‖ḡ‖ over ``window`` decisions, one gradient of each interval. The paper also
    calls the epochs after a learning-rate drop critical; statistics do not show the rate, so that is left out. A loss
    scaler that halves or doubles its scale looks like a critical regime.
    """

    start: Width = 8
    """Width in critical regimes, of which the beginning of the run is one."""
    few: Width = 2
    """Width elsewhere, at most ``start``."""
    threshold: float = 0.5
    """η."""
    window: int = 10
    """Decisions between two looks."""
    accumulated: float = dataclasses.field(init=False, default=0.0)
    """State: Σ‖ḡ‖ since last looked at."""
    pending: int = dataclasses.field(init=False, default=0)
    """State: decisions since last looked at."""
    previous: float | None = dataclasses.field(init=False, default=None)
    """State: the accumulated norm of the last full window."""

    def prepare(self) -> None:
        self.check_choice("few", self.few)
        check_range(0.0, 1e6, threshold=self.threshold)
        check_count(window=self.window)
        if self.few > self.start:
            raise ValueError(f"few {self.few!r} must be at most start, {self.start!r}")

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """Few or many bits, decided once a window."""
        norm_sq = statistics.mean_norm_sq
        if not usable(norm_sq):
            return None
        self.accumulated += math.sqrt(norm_sq)
        self.pending += 1
        return self.bits if self.pending < self.window else self._look()

    def _look(self) -> Width:
        old, new = self.previous, self.accumulated
        self.previous, self.accumulated, self.pending = new, 0.0, 0
        is_critical = old is None or abs(old - new) >= self.threshold * old
        return self.start if is_critical else self.few
