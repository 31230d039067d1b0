"""One width for the whole run."""

import dataclasses
from typing import Any

from ..checks import check_count
from ..saved_state import check_keys
from ..statistics.interval import IntervalStatistics
from ..widths import Width, check_width

_OPENING = 10


@dataclasses.dataclass(slots=True)
class FixedBits:
    """Always the same bit width.

    What an interval costs (``docs/results-costs.md``) buys no decision here, so intervals are long;
    the first has at most ten iterations, so that there are statistics soon.
    """

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

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_keys(state, [], type(self).__name__)
