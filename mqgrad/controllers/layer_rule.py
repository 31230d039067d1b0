"""What the rules with a width per parameter share."""

import abc
import dataclasses
import itertools
from typing import ClassVar

from ..statistics.interval import IntervalStatistics, ParameterStatistics
from ..statistics.moving_average import ewma
from ..widths import Width
from .rule import Rule, usable


@dataclasses.dataclass(kw_only=True, slots=True)
class LayerRule(Rule):
    """A rule that gives every parameter a width of its own. Until the first decision all have ``start``."""

    wants_parameters: ClassVar[bool] = True
    layer_bits: list[Width] = dataclasses.field(init=False, default_factory=list)
    """State: the width of each parameter as decided last; empty before."""

    @property
    def parameter_widths(self) -> tuple[Width, ...]:
        """All that it chooses from."""
        return self.widths

    @abc.abstractmethod
    def choose(self, parameters: tuple[ParameterStatistics, ...]) -> list[Width]:
        """The widths of the next interval. All figures are finite, and not all gradients are zero."""

    def decide(self, statistics: IntervalStatistics) -> Width | list[Width]:
        """Observe one interval and return the width of each parameter; the last ones where a figure overflowed."""
        parameters = statistics.parameters
        are_usable = all(usable(p.norm_sq, p.peak_energy, *itertools.chain(*p.trials)) for p in parameters)
        if are_usable and any(p.norm_sq * p.peak_energy for p in parameters):
            self.layer_bits = self.choose(parameters)
        return list(self.layer_bits) or self.bits


def ewma_each(old: list[float], new: list[float], keep: float) -> list[float]:
    """Moving averages of one figure per parameter; the first ones start them."""
    return [ewma(before, value, keep) for before, value in zip(old or new, new, strict=True)]
