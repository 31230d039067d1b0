"""Buckets that travel as they are and need not wait for the communication thread.

To wake that thread and to have it wait takes longer than all that PyTorch's own all-reduce hook does: with two ranks
8 % of an iteration of 6 ms, with four on two cores 1 % of one of 15 ms (docs/results-costs.md).
"""

import dataclasses
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ..collectives.comm_thread import CommThread
from ..collectives.transport import Transport
from .iteration import Iteration
from .iteration_clock import IterationClock


@dataclasses.dataclass(slots=True)
class _Costs:
    """Of an iteration."""

    wire_bytes: float = 0.0
    seconds: float = 0.0  # in which something was under way
    round_trips: int = 0


class DirectAverages:
    """Averages iterations of plain buckets between the training thread and the backend's own threads.

    1. The first bucket opens the iteration, where that takes no collective and no figures are due
       (:meth:`.Iteration.open_direct`); all the others of the iteration follow it.
    2. Every bucket is divided by the world size and its sum started by the training thread.
    3. The backend calls back when a sum is done; the last of the iteration closes it.

    The same collectives are started in the same order as by the communication thread, so that it does not matter
    whether every rank takes this way.
    """

    def __init__(
        self, transport: Transport, iteration: Iteration, thread: CommThread, clock: IterationClock
    ) -> None:
        self._transport, self._iteration, self._thread, self._clock = transport, iteration, thread, clock
        self._changed = threading.Condition()  # of what follows: callbacks come from several threads
        self._under_way: set[object] = set()
        self._has_last = False
        self._busy_since = 0.0
        self._costs = _Costs()
        self.was_used = False
        """Whether a bucket has gone this way."""

    def takes(self, bucket: dist.GradBucket) -> bool:
        """Whether the bucket goes this way: as the first one of its iteration did, unless something has failed."""
        if self._iteration.is_direct:
            return not self._thread.has_failed
        may_start = self._thread.is_idle and self._transport.can_start_sum(bucket.buffer())
        return may_start and self._iteration.open_direct()

    def start(self, buffer: torch.Tensor, *, is_last: bool) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket that is taken; the future then holds the buffer, or raises what went wrong.

        Raises:
            RuntimeError: the sum could not be started.
        """
        if is_last:
            self._clock.begin_wait(buffer.device)
        bucket = object()

        def end(failure: BaseException | None) -> torch.Tensor:
            try:
                if failure is not None:
                    raise failure
                self._end(bucket)
            # Ctrl-C, too: where the sum was done at once, this is the training thread.
            except BaseException as error:
                self._fail(bucket, error)
                raise
            return buffer

        try:
            self._begin(bucket, buffer.nbytes, is_last)
            return self._start_mean(buffer, end)
        except BaseException as failure:  # Ctrl-C as well: nobody is to wait for what may not have started
            self._fail(bucket, failure)
            raise

    def _start_mean(
        self, buffer: torch.Tensor, end: Callable[[BaseException | None], torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        if buffer.numel() > 0:
            return self._transport.start_sum(buffer.div_(self._transport.world_size), end)
        ended: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        ended.set_result(end(None))  # as by the communication thread, nothing is sent
        return ended

    def finish(self) -> None:
        """End an iteration that is open though all its buckets have their means: DDP called none the last."""
        self.drain()
        with self._changed:
            if self._iteration.is_direct and not self._thread.has_failed:
                self._close()

    def drain(self, seconds: float | None = None) -> bool:
        """Whether nothing is under way, after a wait for that; the backend bounds it."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, seconds)

    def forget(self) -> None:
        """Forget an iteration that is open, of which nothing is under way any more."""
        self._has_last, self._costs = False, _Costs()

    def _begin(self, bucket: object, nbytes: int, is_last: bool) -> None:
        with self._changed:
            if not self._under_way:
                self._busy_since = time.perf_counter()
                self._costs.round_trips += 1
            self._under_way.add(bucket)
            self.was_used = True
            self._has_last = is_last
            self._costs.wire_bytes += self._transport.all_reduce_bytes(nbytes)

    def _end(self, bucket: object) -> None:
        with self._changed:
            self._under_way.discard(bucket)
            self._changed.notify_all()
            if not self._under_way:
                self._costs.seconds += time.perf_counter() - self._busy_since
                if self._has_last and not self._thread.has_failed:
                    self._close()

    def _fail(self, bucket: object, failure: BaseException) -> None:
        with self._changed:
            self._under_way.discard(bucket)
            self._has_last = False  # what is incomplete does not end
            self._changed.notify_all()
        if isinstance(failure, Exception):
            self._thread.fail(failure)

    def _close(self) -> None:
        costs = self._costs
        self._transport.count(costs.wire_bytes, costs.seconds, costs.round_trips)
        self.forget()
        self._iteration.close()
