"""Times the iterations of a training loop, and how much of each waits for communication."""

import contextlib
import time
from collections.abc import Iterator

import torch

from . import stopwatch
from .costs import Costs


class IterationClock:
    """An iteration lasts from one :meth:`lap` to the next; what waits lies between its last bucket and its means."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of the last iteration that communicated, and of those before it that did not; 0 if not known."""
        self._local = 0.0
        self._start: float | None = None
        self._last_bucket: stopwatch.Mark = 0.0
        self._waited = 0.0
        self._blocked = 0.0

    def start(self) -> None:
        """Begin an iteration here."""
        self._start, self._blocked = time.perf_counter(), 0.0

    def restart(self) -> None:
        """Begin an iteration here, with nothing known of the one before."""
        self.start()
        self.seconds = self._local = self._waited = 0.0

    def lap(self, communicated: bool = True) -> Costs | None:
        """End the iteration and begin the next one; return its seconds, or None if its start is not known.

        Args:
            communicated: whether there was anything to wait for.
        """
        start, self._start = self._start, time.perf_counter()
        if start is None:
            return None
        seconds, waited = self._start - start, self._blocked
        self._local += seconds
        self._blocked = 0.0
        if communicated:
            waited = max(waited, self._waited)
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
        self._last_bucket = stopwatch.mark(device)

    def end_wait(self) -> None:
        """All buckets have their means; called where that is found out, on another thread."""
        stopwatch.since(self._last_bucket, self._set_waited)

    def _set_waited(self, seconds: float) -> None:
        self._waited = seconds
