"""Figures of the gradient, averaged over the decisions of a run: a single iteration's say little."""

import dataclasses
import math
from typing import Any

from ..saved_state import check_keys
from .interval import IntervalStatistics
from .moving_average import ewma

FIGURES = ("gradient_signal", "gradient_noise", "peak_energy", "update_exponent")
"""What is averaged, by its name in ``IntervalStatistics``."""


class SmoothedGradient:
    """Exponential moving averages over decisions.

    Args:
        keep: share of the old value, per decision.
    """

    def __init__(self, keep: float = 0.9) -> None:
        self.keep = keep
        self._averages: dict[str, float] = {}

    def observe(self, statistics: IntervalStatistics) -> IntervalStatistics:
        """Take in an interval; return it with averages in place of its own figures.

        Figures that are not finite are left out: one such gradient would leave nothing else for the rest of the run.
        """
        figures = {name: getattr(statistics, name) for name in FIGURES}
        if all(map(math.isfinite, figures.values())):
            before = self._averages
            self._averages = {name: ewma(before.get(name), new, self.keep) for name, new in figures.items()}
        averages: dict[str, Any] = self._averages
        return dataclasses.replace(statistics, **averages)

    def state_dict(self) -> dict[str, float]:
        """State as plain types; empty before the first interval."""
        return dict(self._averages)

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what ``state_dict`` returned."""
        if state:
            check_keys(state, FIGURES, "the averages of the gradient")
        self._averages = {name: float(value) for name, value in state.items()}
