"""Controls: widths that change on a schedule, whatever the training does."""

import dataclasses
import random

from ..checks import check_count, check_positive
from ..statistics.interval import IntervalStatistics
from ..widths import Width
from .rule import WidthRule, usable


@dataclasses.dataclass(kw_only=True)
class LinearRamp(WidthRule):
    """From ``start`` to ``end`` at a constant rate, up or down. A control, not a published method.

    MQGrad's agent (Cui et al., ICTIR 2018) can only keep or add bits, so "few, then many" is built into it:
    a ramp shows what that alone is worth, and its mirror image what the order is worth.
    """

    start: Width = 2
    """Width until the first decision."""
    end: Width = 8
    """Width from the last decision of the ramp on."""
    decisions: int = 100
    """Decisions from ``start`` to ``end``."""
    made: int = dataclasses.field(init=False, default=0)
    """State: decisions made."""

    def prepare(self) -> None:
        self.check_choice("end", self.end)
        check_count(decisions=self.decisions)

    def wanted_bits(self, statistics: IntervalStatistics) -> float:
        """The line's value at this decision."""
        self.made = min(self.made + 1, self.decisions)
        return self.start + (self.end - self.start) * self.made / self.decisions


@dataclasses.dataclass(kw_only=True)
class BudgetRamp(WidthRule):
    """From ``start`` to ``end`` as the run's seconds are spent, up or down: how many decisions there will be need not
    be known, which depends on the link. A control, not a published method.
    """

    start: Width = 4
    """Width until the first decision."""
    end: Width = 1
    """Width when the budget is spent, and on."""
    budget_seconds: float
    """About how long the run will take, in seconds of training."""
    spent: float = dataclasses.field(init=False, default=0.0)
    """State: seconds of the intervals so far."""

    def prepare(self) -> None:
        self.check_choice("end", self.end)
        check_positive(budget_seconds=self.budget_seconds)

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """The line's value where the budget stands."""
        if not usable(statistics.seconds):
            return None
        self.spent += statistics.seconds
        return self.start + (self.end - self.start) * min(self.spent / self.budget_seconds, 1.0)


@dataclasses.dataclass(kw_only=True)
class RandomRamp(LinearRamp):
    """One width up at decisions drawn at random: the mandatory control of MQGrad.

    MQGrad's agent learns from nothing within some 400 noisy decisions, a tenth of which are probes, so a monotone
    ramp at random times is what a learned one must beat. The times are a function of ``seed`` alone, the same
    on every rank and after a restart.
    """

    seed: int = 0
    """Of the draw; a comparison should run several."""

    def prepare(self) -> None:
        super().prepare()
        if self.end < self.start:
            raise ValueError(f"end {self.end!r} must be at least start, {self.start!r}")
        if self.decisions < self._steps:
            raise ValueError(
                f"decisions {self.decisions!r} is too few for the {self._steps} steps from {self.start} to {self.end}"
            )

    def wanted_bits(self, statistics: IntervalStatistics) -> float:
        """As many widths up as drawn times have passed."""
        self.made = min(self.made + 1, self.decisions)
        times = random.Random(self.seed).sample(range(1, self.decisions + 1), self._steps)
        return self.widths[self.widths.index(self.start) + sum(time <= self.made for time in times)]

    @property
    def _steps(self) -> int:
        return self.widths.index(self.end) - self.widths.index(self.start)
