"""A controller and a period rule whose decisions a test writes down."""

import time
from collections.abc import Sequence
from typing import Any

from mqgrad.statistics.interval import IntervalStatistics


class Scripted:
    """Plays its decisions one after another, over and over, and remembers what it saw.

    Args:
        decisions: each a width, or widths by parameter.
        first: width until the first decision; by default the run begins with ``decisions[0]``, and decides for the
            second of them.
        opening, wants_parameters, trial_widths: see :class:`mqgrad.controllers.Controller`.
    """

    def __init__(
        self,
        decisions: Sequence[Any],
        *,
        first: float | None = None,
        interval: int = 2,
        opening: int | None = None,
        wants_parameters: bool = False,
        trial_widths: Sequence[float] = (),
    ) -> None:
        self.initial_bits = decisions[0] if first is None else first
        self.decisions = [*decisions[1:], decisions[0]] if first is None else decisions
        self.interval = interval
        self.opening = opening
        self.wants_parameters = wants_parameters
        self.trial_widths = trial_widths
        self.made = 0
        self.seen: list[IntervalStatistics] = []

    def decide(self, statistics: IntervalStatistics) -> Any:
        self.seen.append(statistics)
        self.made += 1
        return self.decisions[(self.made - 1) % len(self.decisions)]

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


class Listed:
    """Plays periods one after another, and then repeats the last. Takes its time, as a rule may."""

    def __init__(self, *periods: float, seconds: float = 0.0) -> None:
        self.periods = periods
        self.seconds = seconds
        self.made = 0
        self.seen: list[int] = []

    def decide(self, statistics: IntervalStatistics) -> Any:
        time.sleep(self.seconds)
        self.seen.append(statistics.period)
        self.made += 1
        return self.periods[min(self.made, len(self.periods)) - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]
