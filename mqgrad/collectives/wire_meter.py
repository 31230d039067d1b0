"""What collectives cost one rank: bytes, seconds and latency, counted as they are started and waited for."""

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..costs import Costs
from ..stopwatch import Timed
from .paced_link import BOTH_WAYS, Direction, PacedLink

Result = TypeVar("Result")
Read = TypeVar("Read")

SMALL_BYTES = 1024  # a collective this small takes the time of its latency
SMALL_MEMORY = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Pending(Generic[Result]):
    """A collective under way, or what is left of a piece of work that started some."""

    wait: Callable[[], Result]
    """Return its result; to be called once."""

    def then(self, read: Callable[[Result], Read]) -> "Pending[Read]":
        """The same, with something else made of its result."""
        return Pending(lambda: read(self.wait()))


DONE: Pending[None] = Pending(lambda: None)
"""Nothing is under way."""


class Work(Protocol):
    """Something under way, as of torch.distributed."""

    def wait(self) -> object:
        """Return when it is done."""
        ...


class _Collective(NamedTuple):
    """One under way."""

    work: Work | None
    arrival: float  # on the emulated link, by time.perf_counter
    seconds: list[float]  # of starting it, once they are known
    number: int  # of those started
    round_trip: int  # which it counts as, unless one that it was beside already has
    is_lone_small: bool  # small, and none was under way when it started


class WireMeter:
    """Counts and times the collectives that one thread starts and waits for.

    ``wire_bytes`` is what was sent, ``wire_seconds`` the time for which the thread waited, or handed messages to the
    kernel and took them, or would have waited for those that it is told of (:meth:`count`).

    Args:
        paced: emulated link, to whose times collectives are stretched.
    """

    def __init__(self, paced: PacedLink | None = None) -> None:
        self.wire_bytes = 0.0
        self.wire_seconds = 0.0
        self.round_trips = 0
        """Collectives awaited of which each began after the one before had been: latencies that add up."""
        self._round_trip = 0  # number of the last one
        self._paced = paced
        self._started = 0
        self._under_way = 0
        self._last_awaited = 0
        self._awaited_first: Pending[None] | None = None
        self._small_seconds: collections.deque[float] = collections.deque(maxlen=SMALL_MEMORY)

    def await_first(self, pending: Pending[None]) -> None:
        """Whoever waits for the next collective waits for this one before, and gets what it raises."""
        self._awaited_first = pending

    def move_costs(self, costs: Costs) -> None:
        """Add the bytes and seconds since the last call to ``costs``."""
        costs.wire_bytes += self.wire_bytes
        costs.wire_seconds += self.wire_seconds
        costs.fixed_wire_seconds += min(self.round_trips * self.latency_seconds, self.wire_seconds)
        self.wire_bytes = self.wire_seconds = 0.0
        self.round_trips = 0

    @property
    def is_paced(self) -> bool:
        """Whether there is an emulated link."""
        return self._paced is not None

    def count(self, wire_bytes: float, seconds: float, round_trips: int) -> None:
        """Add collectives that were started and timed elsewhere, while nothing was under way here."""
        self.wire_bytes += wire_bytes
        self.wire_seconds += seconds
        self.round_trips += round_trips

    @property
    def next_round_trip(self) -> int:
        """What a collective that starts now counts as."""
        return self._round_trip + 1

    @property
    def latency_seconds(self) -> float:
        """What a collective of few bytes costs: the fastest of the last ones. Others waited for a rank."""
        return min(self._small_seconds, default=0.0)

    def _start(
        self,
        collective: Callable[[], Work | None],
        result: Result,
        wire_bytes: float,
        link_bytes: float | None = None,
        ways: tuple[Direction, ...] = BOTH_WAYS,
        teaches_latency: bool = True,
        round_trip: int | None = None,
    ) -> Pending[Result]:
        """Start, count and time. ``link_bytes``: what crosses the busiest link, where that is not each rank's own;
        ``ways``: in which directions it does. ``teaches_latency``: whether a small one takes every rank the latency.

        A collective adds its latency to those that were awaited before it started, not to those under way; or else
        it counts as the ``round_trip`` of that number.
        """
        seconds: list[float] = []
        begun, is_alone = time.perf_counter(), self._under_way == 0
        with _timed(seconds.append):
            work = collective()
        on_link = wire_bytes if link_bytes is None else link_bytes
        arrival = self._paced.arrival(begun, on_link, ways) if self._paced else 0.0
        is_lone_small = teaches_latency and is_alone and max(wire_bytes, on_link) <= SMALL_BYTES
        self.wire_bytes += wire_bytes
        self._under_way += 1
        self._started += 1
        number = round_trip or self.next_round_trip
        started = _Collective(work, arrival, seconds, self._started, number, is_lone_small)
        return Pending(lambda: self._wait_for(started, result))

    def _wait_for(self, started: _Collective, result: Result) -> Result:
        self._await_other()
        self._count_round_trip(started.round_trip)
        # Beside others, or waited for after what was started later, its latency is hidden.
        teaches = started.is_lone_small and started.number > self._last_awaited
        self._last_awaited = max(self._last_awaited, started.number)
        with _timed(lambda waited: self._add_seconds(started.seconds[0] + waited, teaches)):
            if started.work is not None:
                started.work.wait()
            early = started.arrival - time.perf_counter()
            if early > 0:  # to sleep for no time takes a tenth of a millisecond
                time.sleep(early)
        self._under_way -= 1
        return result

    def _await_other(self) -> None:
        first, self._awaited_first = self._awaited_first, None
        if first is not None:
            first.wait()

    def _count_round_trip(self, number: int) -> None:
        if number > self._round_trip:
            self._round_trip = number
            self.round_trips += 1

    def _add_seconds(self, seconds: float, teaches_latency: bool) -> None:
        self.wire_seconds += seconds
        if teaches_latency:
            self._small_seconds.append(seconds)


def _timed(add: Callable[[float], None]) -> Timed:
    return Timed("wire", add)
