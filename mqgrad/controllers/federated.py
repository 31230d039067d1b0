"""Three rules from federated learning: by loss level, by loss plateau, by range."""

import dataclasses
import math

from ..checks import check_count, check_decay
from ..statistics.interval import IntervalStatistics
from ..statistics.moving_average import ewma
from ..widths import Width
from .rule import WidthRule, usable

_MOST_LEVELS = 2.0**32  # more than any width has


@dataclasses.dataclass(kw_only=True, slots=True)
class AdaQuantFL(WidthRule):
    """More levels as the loss falls: s = ceil(s₀·sqrt(f₀/f)), b = 1 + ceil(log2(s + 1)) (Jhunjhunwala et al. 2021).

    f is the loss now and f₀ that of the first interval; s₀ = 2^(start − 1) − 1, the levels of width ``start``.
    """

    start: Width = 2
    """Width until the first decision, at least 2: it sets s₀."""
    first_loss: float | None = dataclasses.field(init=False, default=None)
    """State: f₀."""

    def prepare(self) -> None:
        if self.start < 2:
            raise ValueError(f"start {self.start!r} must be at least 2: one bit has no levels to scale")

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """The width that holds the levels of this loss."""
        loss = statistics.loss
        if not usable(loss) or loss == 0:
            return None
        if self.first_loss is None:
            self.first_loss = loss
        levels = (2 ** (self.start - 1) - 1) * math.sqrt(self.first_loss / loss)
        return 1 + bits_of(math.ceil(min(levels, _MOST_LEVELS)))


@dataclasses.dataclass(kw_only=True, slots=True)
class DAdaQuant(WidthRule):
    """One width up when the running loss has not fallen over φ decisions, then hold (Hönig et al., ICML 2022).

    The time-adaptive half of the paper; a doubling of its levels is one bit more.
    """

    start: Width = 2
    """Width until the first plateau."""
    patience: int = 5
    """φ, in decisions."""
    keep: float = 0.9
    """Share of the old value in the running loss."""
    running_losses: list[float] = dataclasses.field(init=False, default_factory=list)
    """State: the running loss after each decision since the last step up, at most φ + 1 of them."""

    def prepare(self) -> None:
        check_count(patience=self.patience)
        check_decay(keep=self.keep)

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """One width up on a plateau."""
        if not math.isfinite(statistics.loss):
            return None
        last = self.running_losses[-1] if self.running_losses else None
        newest = ewma(last, statistics.loss, self.keep)
        self.running_losses = [*self.running_losses, newest][-(self.patience + 1) :]
        if len(self.running_losses) <= self.patience or newest < self.running_losses[0]:
            return self.bits
        self.running_losses = [newest]
        return self.wider(self.bits)


@dataclasses.dataclass(kw_only=True, slots=True)
class FedDQ(WidthRule):
    """Fewer bits as the range shrinks: b = ceil(log2(range/resolution + 1)) (Qu et al. 2022, descending).

    The range is 2·sqrt(``peak_energy``), a root-sum-square over the scale buckets of their own ranges. Derived:
    ``resolution`` is set so that the first range takes ``start`` bits, which needs no unit. A loss scaler that
    changes its scale changes the range.
    """

    start: Width = 8
    """Width of the first range; it sets the resolution."""
    resolution: float | None = dataclasses.field(init=False, default=None)
    """State: the step between two values, in the unit of the range."""

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """The width at which this range has the resolution of the first."""
        if not usable(statistics.peak_energy) or statistics.peak_energy == 0:
            return None
        span = 2 * math.sqrt(statistics.peak_energy)
        if self.resolution is None:
            self.resolution = span / (2**self.start - 1)
        return bits_of(span / self.resolution)


def bits_of(levels: float) -> int:
    """ceil(log2(levels + 1)): bits that count from 0 to ``levels``."""
    return math.ceil(round(math.log2(min(levels, _MOST_LEVELS) + 1), 9))  # 2.0000000001 is 2
