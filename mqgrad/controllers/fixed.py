"""One width for the whole run."""

import dataclasses

from ..checks import check_count
from ..saved_state import SavesFields
from ..statistics.interval import IntervalStatistics
from ..widths import Width, check_width

_OPENING = 10


@dataclasses.dataclass(slots=True)
class FixedBits(SavesFields):
    """Always the same bit width.

    What an interval costs (``docs/results-costs.md``) buys no decision here, so intervals are long;
    the first has at most ten iterations, so that there are statistics soon.
    """

    state_owner = "FixedBits"
    bits: Width
    interval: int = 100

    def __post_init__(self) -> None:
        self.bits = check_width(self.bits)
        check_count(interval=self.interval)

    @property
    def opening(self) -> int:
        """Iterations of the first interval."""
        return min(self.interval, _OPENING)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The one: so that a compressor without it is named, with those that have it."""
        return (self.bits,)

    @property
    def initial_bits(self) -> Width:
        return self.bits

    def decide(self, statistics: IntervalStatistics) -> Width:
        return self.bits
