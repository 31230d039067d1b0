"""PyTorch's own all-reduce of gradients, counted, and paced on an emulated link."""

import time

import torch
import torch.distributed as dist

from mqgrad.collectives.comm_thread import CommThread
from mqgrad.collectives.transport import Transport


class PacedAllReduce:
    """Between a communication hook of PyTorch's and DDP: a thread of ours waits for the hook's all-reduce."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._thread = CommThread()
        self._waited = 0.0

    def follow(
        self,
        mean: torch.futures.Future[torch.Tensor],
        bucket: dist.GradBucket,
        itemsize: int | None = None,
    ) -> torch.futures.Future[torch.Tensor]:
        """The future to give to DDP in the place of the all-reduce's own.

        Args:
            itemsize: bytes that an element takes on the wire, where the hook casts it.
        """
        buffer, ready = bucket.buffer(), time.perf_counter()
        nbytes = buffer.numel() * (itemsize or buffer.itemsize)

        def wait() -> None:
            self._transport.counted_all_reduce(mean.wait, nbytes)
            self._waited = time.perf_counter() - ready  # that of the last bucket stays

        return self._thread.submit(wait, buffer)

    def take_waited(self) -> float:
        """Seconds for which this iteration's backward has waited; 0 if nothing was averaged."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """End the thread."""
        self._thread.close()
