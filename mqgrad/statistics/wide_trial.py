"""An interval at many bits now and then, to learn what bytes cost."""

from collections.abc import Sequence

from ..saved_state import SavesFields
from ..widths import Width
from .interval import IntervalStatistics
from .step_times import StepTimes

TRIED = 8
"""Bits of a trial."""

_FIRST, _FACTOR, _LONGEST = 2, 4, 256
"""Decisions until a trial: two until the first, as iterations of an opening are longer than others, then each time
four times as many, up to a number, as links change."""
_AFTER_CHANGE = 8
"""The same, at most, where seconds have changed."""
_MOST_SLOWDOWN = 1.5
"""Of an iteration, expected at the optimistic price of a bit."""


class WideTrial(SavesFields):
    """Whether the next interval should be at 8 bits, whatever a rule expects of that.

    Few widths side by side hardly tell what bytes cost from what ranks wait for one another: between 1 and 3 bits an
    iteration on a fast link differs by less than two intervals at one width do. A run there would stay with few bits
    that gain nothing, and never learn that none of its coding was needed. An interval at 8 bits tells, and from there
    32 bits are within reach of the goodput rule.

    Trials become rarer, as does what is left to learn from them; one is left out where iterations are expected to
    take half as long again.
    """

    state_fields = ("_passed", "_wait")
    state_owner = "the trials of 8 bits"

    def __init__(self) -> None:
        self._passed, self._wait = 0, _FIRST

    def width(
        self, statistics: IntervalStatistics, times: StepTimes, widths: Sequence[Width]
    ) -> Width | None:
        """Of the next interval, or None. To be asked at every decision.

        Args:
            statistics: of the last interval.
            times: what has been learned, that interval included.
            widths: to choose from.
        """
        self._passed += 1
        if self._passed < self._wait:
            return None
        self._passed, self._wait = 0, min(_FACTOR * self._wait, _LONGEST)
        if TRIED not in widths or statistics.mean_bits >= TRIED:
            return None
        return TRIED if times.seconds(TRIED) <= _MOST_SLOWDOWN * statistics.step_seconds else None

    def expect_change(self) -> None:
        """Seconds have changed, and with them what is to be learned: the next trial is to be soon."""
        if self._wait - self._passed > _AFTER_CHANGE:
            self._passed, self._wait = 0, _AFTER_CHANGE
