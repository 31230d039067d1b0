"""What the training thread has the communication thread do between ranks, behind all that it was given before."""

from collections.abc import Sequence

import torch

from ..collectives.comm_thread import CommThread
from ..collectives.wire_meter import Pending
from ..compressors.base import BucketWork
from .common_start import make_equal
from .iteration import Iteration
from .shared_parts import SharedParts


class QueuedCollectives:
    """Averages of buckets, and what else a round of local iterations takes at its end.

    Args:
        parts: of the run.
        iteration: what the communication thread does.
        thread: that thread.
    """

    def __init__(self, parts: SharedParts, iteration: Iteration, thread: CommThread) -> None:
        self._transport, self._clock = parts.transport, parts.clock
        self._iteration, self._thread = iteration, thread

    def average(
        self, work: BucketWork, *, is_last: bool, period: int = 1, own_mask: torch.Tensor | None = None
    ) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket of an iteration, or of a round of ``period``.

        Args:
            own_mask: what other ranks wait for in :meth:`maximum`, and this one need not.
        """
        if is_last:
            self._clock.begin_wait(work.buffer.device)

        def start() -> Pending[None]:
            if own_mask is None:
                return self._iteration.start_average(work, is_last, period)
            maximum = self._start_maximum(own_mask)
            return self._iteration.start_average(work, is_last, period).then(lambda _: maximum.wait())

        return self._thread.submit(start, work.buffer)

    def open_round(self) -> None:
        """Have ranks agree on what they have, before they tell one another anything of a round."""
        self._thread.post(self._iteration.open_round)

    def make_equal(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite tensors by rank 0's, on all ranks."""
        if self._transport.world_size > 1:
            self._thread.submit(lambda: make_equal(tensors, self._transport), tensors[0]).wait()

    def maximum(self, own: torch.Tensor) -> torch.Tensor:
        """Replace a vector by its largest elements over ranks."""
        return self._thread.submit(lambda: self._start_maximum(own), own).wait()

    def _start_maximum(self, own: torch.Tensor) -> Pending[None]:
        def take(rows: torch.Tensor) -> None:
            own.copy_(rows.amax(0))

        return self._transport.start_all_gather(own.clone()).then(take)
