"""Collectives over a process group of torch.distributed."""

import datetime
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist

from .paced_link import Link, PacedLink
from .transport import Transport
from .wire_meter import Pending

# all_gather_into_tensor is renamed in torch 2.13 and warns there under its old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

_ONE_HOP_BYTES = 2**15
"""Gloo's all-gather is a ring of W−1 hops, each of which wakes threads. Up to this size, payloads go from everyone
to everyone instead, the same bytes: with four ranks on two cores in less than half of the time. Above it they queue
up on slow links. Payloads of different lengths always go that way."""


class ProcessGroupTransport(Transport):
    """The collectives of one process group, Gloo's or NCCL's.

    Args:
        group: the ranks.
        link: emulated link: each collective is stretched to the time that it would take there.
    """

    def __init__(self, group: dist.ProcessGroup, link: Link | None = None) -> None:
        self._is_nccl = dist.get_backend(group) == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if self._is_nccl else torch.device("cpu")
        paced = PacedLink(link) if link is not None and group.size() > 1 else None
        super().__init__(group.rank(), group.size(), device, paced)
        self.group = group

    def start_all_to_all(self, payloads: torch.Tensor, lengths: Sequence[int]) -> Pending[torch.Tensor]:
        own = lengths[self.rank]
        received = payloads.new_empty(self.world_size, own)
        splits = _splits(lengths)
        return self._start(
            lambda: dist.all_to_all_single(
                received.view(-1),
                payloads,
                splits and [own] * self.world_size,
                splits,
                group=self.group,
                async_op=True,
            ),
            received,
            (payloads.numel() - own) * payloads.itemsize,
            link_bytes=(payloads.numel() - min(lengths)) * payloads.itemsize,
        )

    def start_all_gather(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        if not self._is_nccl and payload.nbytes <= _ONE_HOP_BYTES:
            rows = self._start_one_hop(payload, [payload.numel()] * self.world_size)
            return rows.then(lambda flat: flat.view(self.world_size, payload.numel()))
        gathered = payload.new_empty(self.world_size, payload.numel())
        return self._start(
            lambda: _all_gather(gathered.view(-1), payload, group=self.group, async_op=True),
            gathered,
            payload.nbytes * (self.world_size - 1),
        )

    def start_all_gather_uneven(self, payload: torch.Tensor, lengths: Sequence[int]) -> Pending[torch.Tensor]:
        if _splits(lengths) is None:
            return self.start_all_gather(payload).then(torch.Tensor.flatten)
        return self._start_one_hop(payload, lengths)

    def _start_one_hop(self, payload: torch.Tensor, lengths: Sequence[int]) -> Pending[torch.Tensor]:
        """Gather by an all-to-all in which everyone gets the same."""
        gathered, copies = payload.new_empty(sum(lengths)), payload.repeat(self.world_size)
        others, receives = self.world_size - 1, _splits(lengths)
        sends = receives and [payload.numel()] * self.world_size
        return self._start(
            lambda: dist.all_to_all_single(
                gathered, copies, receives, sends, group=self.group, async_op=True
            ),
            gathered,
            payload.nbytes * others,
            link_bytes=max(lengths) * payload.itemsize * others,
        )

    def all_reduce_(self, tensor: torch.Tensor, op: Literal["sum", "max"] = "sum") -> None:
        reduce_op = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
        self._start(
            lambda: dist.all_reduce(tensor, reduce_op, group=self.group, async_op=True),
            tensor,
            self._all_reduce_bytes(tensor.nbytes),
        ).wait()

    def broadcast_(self, tensor: torch.Tensor) -> None:
        self._start(
            lambda: dist.broadcast(tensor, self._server, group=self.group, async_op=True),
            tensor,
            tensor.nbytes if self.rank == 0 else 0,
            teaches_latency=False,  # rank 0 does not wait for the others
        ).wait()

    def start_gather(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        is_server = self.rank == 0
        gathered = payload.new_empty(self.world_size if is_server else 0, payload.numel())
        rows = list(gathered) if is_server else None
        return self._start(
            lambda: dist.gather(payload, rows, self._server, self.group, async_op=True),
            gathered,
            0 if is_server else payload.nbytes,
            link_bytes=payload.nbytes * (self.world_size - 1),
            ways=("in",),
        )

    def start_fan_out(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        # Not a broadcast: Gloo's is a tree, in which other ranks relay.
        is_server = self.rank == 0
        received = torch.empty_like(payload)
        copies = [payload] * self.world_size if is_server else None
        total = payload.nbytes * (self.world_size - 1)
        return self._start(
            lambda: dist.scatter(received, copies, self._server, self.group, async_op=True),
            received,
            total if is_server else 0,
            link_bytes=total,
            ways=("out",),
        )

    @property
    def _server(self) -> int:
        return dist.get_global_rank(self.group, 0)

    def close(self) -> None:
        """Give the process group back.

        Nothing else holds it, so its threads have ended on return: one that still has to release a tensor when the
        interpreter ends aborts the process (https://github.com/pytorch/pytorch/issues/190489).
        """
        dist.destroy_process_group(self.group)
        del self.group


def _splits(lengths: Sequence[int]) -> list[int] | None:
    """Lengths as the collectives take them: None if all are the same."""
    return None if len(set(lengths)) == 1 else list(lengths)


def own_group(group: dist.ProcessGroup | None, timeout_seconds: float) -> dist.ProcessGroup:
    """A group of the same ranks whose collectives cannot interleave with the training script's.

    Every rank calls it at the same point. Every wait in the group is bounded by the timeout.
    """
    if not dist.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group first")
    group = group or dist.group.WORLD
    return dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=datetime.timedelta(seconds=timeout_seconds),
        backend=dist.get_backend(group),
    )
