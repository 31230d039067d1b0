"""One interval at many bits, early in a run, to learn what bytes cost."""

from collections.abc import Sequence
from typing import Any

from ..saved_state import check_keys
from ..widths import Width
from .interval import IntervalStatistics
from .step_times import StepTimes

_BITS = 8
_AT = 2
"""The decision that it follows: iterations of an opening are longer than others."""
_MOST_SLOWDOWN = 2.0
"""Of an iteration, expected at the optimistic price of a bit."""


class WideTrial:
    """Whether the next interval should be at 8 bits, whatever a rule expects of that.

    Few widths side by side hardly tell what bytes cost from what ranks wait for one another: between 1 and 3 bits an
    iteration on a fast link differs by less than two intervals at one width do. A run there would stay with few bits
    that gain nothing, and never learn that none of its coding was needed. An interval at 8 bits tells, and from there
    32 bits are within reach. It is made once, and not where iterations are expected to take more than twice as long.
    """

    def __init__(self) -> None:
        self._decisions = 0

    def width(
        self, statistics: IntervalStatistics, times: StepTimes, widths: Sequence[Width]
    ) -> Width | None:
        """Of the next interval, or None. To be asked at every decision.

        Args:
            statistics: of the last interval.
            times: what has been learned, that interval included.
            widths: to choose from.
        """
        self._decisions = min(self._decisions + 1, _AT + 1)
        if self._decisions != _AT or _BITS not in widths or statistics.mean_bits >= _BITS:
            return None
        return _BITS if times.seconds(_BITS) <= _MOST_SLOWDOWN * statistics.step_seconds else None

    def state_dict(self) -> dict[str, Any]:
        """State as plain types."""
        return {"decisions": self._decisions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, self.state_dict(), "the trial of 8 bits")
        self._decisions = int(state["decisions"])
