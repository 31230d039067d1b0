"""Times the iterations of a training loop, and how much of each waits for communication."""

import contextlib
import functools
import threading
import time
from collections.abc import Iterator

import torch

from .. import stopwatch
from ..costs import Costs


class IterationClock:
    """An iteration lasts from one :meth:`lap` to the next; what waits lies between its last bucket and its means, in
    each of its backwards."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of the last iteration that communicated, and of those before it that did not; 0 if not known."""
        self.laps = 0
        """Iterations that communicated, so far."""
        self._local = 0.0
        self._start: float | None = None
        self._last_bucket: stopwatch.Mark = 0.0
        self._lap = self._waiting_lap = 0
        self._begun: dict[int, int] = {}
        """Backwards that have begun to wait, by lap."""
        self._waits: dict[int, list[float]] = {}
        """What they waited, by lap; another thread adds to it, with a GPU some laps later."""
        self._lock = threading.Lock()
        """Of these two."""
        self._blocked = 0.0

    def start(self) -> None:
        """Begin an iteration here."""
        self._start, self._blocked = time.perf_counter(), 0.0

    def restart(self) -> None:
        """Begin an iteration here, with nothing known of the one before."""
        self.start()
        self.seconds = self._local = 0.0
        with self._lock:
            self._begun.clear()
            self._waits.clear()

    def lap(self, communicated: bool = True) -> Costs | None:
        """End the iteration and begin the next one; return its seconds, or None if its start is not known.

        Args:
            communicated: whether there was anything to wait for.
        """
        ended, self._lap = self._lap, self._lap + 1
        self.laps += communicated
        start, self._start = self._start, time.perf_counter()
        waited, self._blocked = self._blocked, 0.0
        if start is None:
            return None
        seconds = self._start - start
        self._local += seconds
        if communicated:
            waited = max(waited, self._last_known_wait(ended))
            self.seconds, self._local = self._local, 0.0
        return Costs(step_seconds=seconds, compute_seconds=max(seconds - waited, 0.0))

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """What the training thread does meanwhile is for communication."""
        start = time.perf_counter()
        yield
        self._blocked += time.perf_counter() - start

    def begin_wait(self, device: torch.device) -> None:
        """The last bucket's gradients are there, on the current stream of ``device``."""
        self._last_bucket, self._waiting_lap = stopwatch.mark(device), self._lap
        with self._lock:
            self._begun[self._lap] = self._begun.get(self._lap, 0) + 1

    def end_wait(self) -> None:
        """All buckets have their means; called where that is found out, on another thread."""
        stopwatch.since(self._last_bucket, functools.partial(self._add_wait, self._waiting_lap))

    def _add_wait(self, lap: int, seconds: float) -> None:
        with self._lock:
            self._waits.setdefault(lap, []).append(seconds)

    def _last_known_wait(self, ended: int) -> float:
        """Of the last lap of which all backwards are known; none if the one that ended sent nothing."""
        with self._lock:
            if ended not in self._begun:
                return 0.0
            last = max(
                (lap for lap, n in self._begun.items() if len(self._waits.get(lap, ())) == n), default=-1
            )
            for by_lap in (self._begun, self._waits):
                for lap in [lap for lap in by_lap if lap < last]:
                    del by_lap[lap]
            return sum(self._waits.get(last, ()))
