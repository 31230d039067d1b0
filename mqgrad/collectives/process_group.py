"""Collectives over a process group of torch.distributed."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
import torch.distributed as dist

from .named_work import NamedWork, call_naming, failure_of, waits_in
from .own_group import destroy
from .paced_link import Link, PacedLink
from .point_to_point import PointToPoint
from .transport import Transport
from .wire_meter import Pending, Work

Result = TypeVar("Result")

# all_gather_into_tensor is renamed in torch 2.13 and warns there under its old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class _AfterMessages(NamedWork):
    """A collective of the backend's, in which this rank waits only when it owes nobody a message.

    While it waits there, none is sent or received: another rank may need one before it comes to this collective.
    """

    def __init__(self, start: Callable[[], Work | None], waits: str, messages: PointToPoint) -> None:
        super().__init__(start, waits)
        self._messages = messages

    def wait(self) -> None:
        self._messages.finish()
        super().wait()


class Collectives:
    """The backend's own, for tensors on a GPU; on the CPU see :class:`PointToPoint`, which has the same methods."""

    def __init__(self, group: dist.ProcessGroup, global_ranks: Sequence[int], messages: PointToPoint) -> None:
        self._group, self._global_ranks, self._messages = group, global_ranks, messages

    def start_all_to_all(
        self, received: torch.Tensor, payloads: torch.Tensor, lengths: Sequence[int]
    ) -> Work:
        world_size, own = received.shape
        return self._named(
            "an all-to-all",
            lambda: dist.all_to_all_single(
                received.view(-1), payloads, [own] * world_size, list(lengths), self._group, async_op=True
            ),
        )

    def start_all_gather(self, gathered: torch.Tensor, payload: torch.Tensor, lengths: Sequence[int]) -> Work:
        if len(set(lengths)) == 1:
            return self._named(
                "an all-gather", lambda: _all_gather(gathered, payload, self._group, async_op=True)
            )
        world_size = len(lengths)
        return self._named(
            "an all-gather",
            lambda: dist.all_to_all_single(
                gathered,
                payload.repeat(world_size),
                list(lengths),
                [payload.numel()] * world_size,
                self._group,
                async_op=True,
            ),
        )

    def _named(self, what: str, collective: Callable[[], Work]) -> Work:
        return _AfterMessages(
            collective, waits_in(self._global_ranks, self._group.rank(), what), self._messages
        )

    def close(self) -> None:
        """Hold the group no longer."""
        del self._group


class ProcessGroupTransport(Transport):
    """The collectives of one process group; on the CPU all-to-alls and all-gathers over connections of our own.

    Ranks are given within the group, as torch knows the job's no more once the script has destroyed all groups.

    Args:
        group: the ranks, as :func:`own_group` makes it.
        link: emulated link: each collective is stretched to the time that it would take there.
    """

    def __init__(self, group: dist.ProcessGroup, link: Link | None = None) -> None:
        paced = PacedLink(link) if link is not None and group.size() > 1 else None
        ranks = dist.get_process_group_ranks(group)
        super().__init__(group.rank(), group.size(), torch.device("cpu"), paced, ranks)
        self.group = group
        self._waits_for_sum = self._waits("an all-reduce")
        try:
            self._on_cpu = PointToPoint(group)
        except BaseException:
            destroy(group)
            raise
        self._on_gpu = Collectives(group, ranks, self._on_cpu)

    def start_all_to_all(
        self, payloads: torch.Tensor, lengths: Sequence[int], round_trip: int | None = None
    ) -> Pending[torch.Tensor]:
        received = payloads.new_empty(self.world_size, lengths[self.rank])
        return self._start(
            lambda: self._carrier(payloads).start_all_to_all(received, payloads, lengths),
            received,
            (payloads.numel() - lengths[self.rank]) * payloads.itemsize,
            link_bytes=(payloads.numel() - min(lengths)) * payloads.itemsize,
            round_trip=round_trip,
        )

    def start_joined_all_gather(self, payload: torch.Tensor, lengths: Sequence[int]) -> Pending[torch.Tensor]:
        gathered, others = payload.new_empty(sum(lengths)), self.world_size - 1
        return self._start(
            lambda: self._carrier(payload).start_all_gather(gathered, payload, lengths),
            gathered,
            payload.nbytes * others,
            link_bytes=max(lengths) * payload.itemsize * others,
        )

    def _after_messages(self, start: Callable[[], Work | None], waits: str) -> _AfterMessages:
        return _AfterMessages(start, waits, self._on_cpu)

    def _waits(self, what: str) -> str:
        return waits_in(self.global_ranks, self.rank, what)

    def _carrier(self, payload: torch.Tensor) -> Collectives | PointToPoint:
        return self._on_gpu if payload.is_cuda else self._on_cpu

    def all_reduce_(self, tensor: torch.Tensor, op: Literal["sum", "max"] = "sum") -> None:
        reduce_op = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
        self._start(
            lambda: self._after_messages(
                lambda: dist.all_reduce(tensor, reduce_op, group=self.group, async_op=True),
                self._waits_for_sum,
            ),
            tensor,
            self.all_reduce_bytes(tensor.nbytes),
        ).wait()

    def can_start_sum(self, tensor: torch.Tensor) -> bool:
        """A dense one on the CPU, but on no emulated link, for which somebody has to wait."""
        return not (tensor.is_cuda or tensor.is_sparse or self.is_paced)

    def start_sum(
        self, tensor: torch.Tensor, end: Callable[[BaseException | None], Result]
    ) -> torch.futures.Future[Result]:
        waits = self._waits_for_sum
        # Without what `dist.all_reduce` does in Python.
        work = call_naming(waits, lambda: self.group.allreduce([tensor]))
        return work.get_future().then(lambda done: end(failure_of(waits, done)))

    def broadcast_(self, tensor: torch.Tensor) -> None:
        self._start(
            lambda: self._after_messages(
                lambda: dist.broadcast(tensor, group=self.group, group_src=0, async_op=True),
                self._waits("a broadcast"),
            ),
            tensor,
            tensor.nbytes if self.rank == 0 and self.world_size > 1 else 0,
            teaches_latency=False,  # rank 0 does not wait for the others
        ).wait()

    def start_gather(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        is_server = self.rank == 0
        gathered = payload.new_empty(self.world_size if is_server else 0, payload.numel())
        rows = list(gathered) if is_server else None
        return self._start(
            lambda: self._after_messages(
                lambda: dist.gather(payload, rows, group=self.group, group_dst=0, async_op=True),
                self._waits("a gather"),
            ),
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
            lambda: self._after_messages(
                lambda: dist.scatter(received, copies, group=self.group, group_src=0, async_op=True),
                self._waits("a scatter"),
            ),
            received,
            total if is_server else 0,
            link_bytes=total,
            ways=("out",),
        )

    def close(self) -> None:
        """Give the process group back.

        Where nothing else holds it, as DDP would, its threads have ended on return: one that still has to release a
        tensor when the interpreter ends aborts the process (https://github.com/pytorch/pytorch/issues/190489).
        """
        self._on_cpu.close()
        destroy(self.group)
        self._on_gpu.close()
        del self.group
