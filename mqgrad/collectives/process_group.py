"""Collectives over a process group of torch.distributed."""

import contextlib
import datetime
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
import torch.distributed as dist

from ..checks import check_positive
from .named_work import NamedWork, call_naming, failure_of
from .paced_link import Link, PacedLink
from .point_to_point import PointToPoint, Send
from .transport import Start, Transport
from .wire_meter import Pending, Work

Result = TypeVar("Result")

_LONGEST_TIMEOUT = 1e8  # seconds; three years
_IDLE = "mqgrad_idle"
"""A backend of torch.distributed."""

# all_gather_into_tensor is renamed in torch 2.13 and warns there under its old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _named(group: dist.ProcessGroup, what: str, collective: Callable[[], Work]) -> NamedWork:
    """Start a collective in which any rank may be the one that is missing."""
    return NamedWork(collective, _waits(group, what))


def _waits(group: dist.ProcessGroup, what: str) -> str:
    return f"rank {group.rank()} of {group.size()} waited in vain for another one in {what}"


class Collectives:
    """The backend's own, for tensors on a GPU: to post does nothing. For the rest see :class:`PointToPoint`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def post_all_to_all(self, received: torch.Tensor, lengths: Sequence[int]) -> Send:
        world_size, own = received.shape
        return lambda payloads: self._named(
            "an all-to-all",
            lambda: dist.all_to_all_single(
                received.view(-1), payloads, [own] * world_size, list(lengths), self._group, async_op=True
            ),
        )

    def post_all_gather(self, gathered: torch.Tensor, lengths: Sequence[int]) -> Send:
        if len(set(lengths)) == 1:
            return lambda payload: self._named(
                "an all-gather", lambda: _all_gather(gathered, payload, self._group, async_op=True)
            )
        world_size = len(lengths)
        return lambda payload: self._named(
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

    def _named(self, what: str, collective: Callable[[], Work]) -> NamedWork:
        return _named(self._group, what, collective)

    def close(self) -> None:
        """Hold the group no longer."""
        del self._group


class ProcessGroupTransport(Transport):
    """The collectives of one process group: Gloo's for what is on the CPU, small messages among it.

    Args:
        group: the ranks, as :func:`own_group` makes it.
        link: emulated link: each collective is stretched to the time that it would take there.
    """

    def __init__(self, group: dist.ProcessGroup, link: Link | None = None) -> None:
        paced = PacedLink(link) if link is not None and group.size() > 1 else None
        super().__init__(group.rank(), group.size(), torch.device("cpu"), paced)
        self.group = group
        self._on_gpu = Collectives(group)
        self._on_cpu = PointToPoint(group)

    def post_all_to_all(self, lengths: Sequence[int], like: torch.Tensor) -> Start:
        received, round_trip = like.new_empty(self.world_size, lengths[self.rank]), self.next_round_trip
        with self.posting():
            send = self._carrier(like).post_all_to_all(received, lengths)
        return lambda payloads: self._start(
            lambda: send(payloads),
            received,
            (payloads.numel() - lengths[self.rank]) * payloads.itemsize,
            link_bytes=(payloads.numel() - min(lengths)) * payloads.itemsize,
            round_trip=round_trip,
        )

    def post_all_gather(self, lengths: Sequence[int], like: torch.Tensor) -> Start:
        gathered, others = like.new_empty(sum(lengths)), self.world_size - 1
        with self.posting():
            send = self._carrier(like).post_all_gather(gathered, lengths)
        return lambda payload: self._start(
            lambda: send(payload),
            gathered,
            payload.nbytes * others,
            link_bytes=max(lengths) * payload.itemsize * others,
        )

    def _carrier(self, like: torch.Tensor) -> Collectives | PointToPoint:
        return self._on_gpu if like.is_cuda else self._on_cpu

    def all_reduce_(self, tensor: torch.Tensor, op: Literal["sum", "max"] = "sum") -> None:
        reduce_op = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
        self._start(
            lambda: _named(
                self.group,
                "an all-reduce",
                lambda: dist.all_reduce(tensor, reduce_op, group=self.group, async_op=True),
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
        waits = _waits(self.group, "an all-reduce")
        work = call_naming(
            waits, lambda: self.group.allreduce([tensor])
        )  # without what `dist.all_reduce` does in Python
        return work.get_future().then(lambda done: end(failure_of(waits, done)))

    def broadcast_(self, tensor: torch.Tensor) -> None:
        self._start(
            lambda: _named(
                self.group,
                "a broadcast",
                lambda: dist.broadcast(tensor, self._server, group=self.group, async_op=True),
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
            lambda: _named(
                self.group,
                "a gather",
                lambda: dist.gather(payload, rows, self._server, self.group, async_op=True),
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
            lambda: _named(
                self.group,
                "a scatter",
                lambda: dist.scatter(received, copies, self._server, self.group, async_op=True),
            ),
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
        with contextlib.suppress(ValueError):  # the script has destroyed all groups before
            dist.destroy_process_group(self.group)
            if _has_some_ranks(self.group):
                _keep_names_new()
        self._on_gpu.close()
        self._on_cpu.close()
        del self.group


def _has_some_ranks(group: dist.ProcessGroup) -> bool:
    return group.size() < dist.get_world_size()


class _Idle(dist.ProcessGroup):
    """Has a name, and no threads, files or collectives."""

    def getBackendName(self) -> str:
        return _IDLE


def _new_idle(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> dist.ProcessGroup:
    return _Idle(rank, size)  # type: ignore[call-arg] # the stub has the constructor of others alone


def _keep_names_new() -> None:
    """Have as many groups as before one of some ranks was destroyed.

    Torch names groups of some ranks by these and by how many groups there are. With fewer, the next one would have
    the name of one that is open, or was: then its members look for each other at addresses that are gone, for five
    times their timeout.
    """
    _make_idle_group()


def _make_idle_group() -> None:
    """A group of this rank alone, which does nothing but count."""
    if _IDLE not in dist.Backend.backend_list:
        dist.Backend.register_backend(_IDLE, _new_idle, devices=["cpu"])
    dist.new_group([dist.get_rank()], backend=_IDLE, use_local_synchronization=True)


def own_group(group: dist.ProcessGroup | None, timeout_seconds: float) -> dist.ProcessGroup:
    """A group of the same ranks whose collectives cannot interleave with the training script's.

    Every rank of the group calls it at the same point. Every wait in the group is bounded by the timeout, and so is
    that for its members here. Where the group has some of the ranks only, others may make one of theirs, or none.

    Raises:
        RuntimeError: torch.distributed has not been initialized.
        ValueError: the timeout is not above 0 and at most 1e8 seconds; this rank is not in the group.
        TypeError: it is no group.
    """
    check_positive(timeout_seconds=timeout_seconds)
    if timeout_seconds > _LONGEST_TIMEOUT:
        raise ValueError(f"timeout_seconds must be at most {_LONGEST_TIMEOUT:g}, not {timeout_seconds!r}")
    if not dist.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group first")
    if group is not None:
        _check_group(group)
    of = group or dist.group.WORLD
    assert of is not None  # as torch.distributed is initialized
    timeout = datetime.timedelta(seconds=float(timeout_seconds))

    def construct() -> dist.ProcessGroup:
        if _has_some_ranks(of):
            _have_equally_many(of, timeout)
        return dist.new_group(
            dist.get_process_group_ranks(of),
            timeout=timeout,
            backend=own_backend(dist.get_backend(of), dist.get_backend_config(of)),
            use_local_synchronization=_has_some_ranks(of),
        )

    return call_naming(_waits(of, "the construction of a CompressionState"), construct)


def _have_equally_many(of: dist.ProcessGroup, timeout: datetime.timedelta) -> None:
    """Have all members in as many groups as the one that is in most: by that torch names their next one.

    They tell one another through the store by which they found each other, as there may be no backend for messages on
    the CPU:

    1. Every member counts this call, as the others do, and writes how many groups it is in.
    2. It waits for all others, and makes groups of itself alone, which do nothing.

    Raises:
        RuntimeError: a member did not come within the timeout.
    """
    _, members_store = dist.distributed_c10d._world.pg_map[of]
    store = dist.PrefixStore("mqgrad", members_store)
    number = store.add(f"calls of {of.rank()}", 1)
    keys = [f"groups of {rank} in call {number}" for rank in range(of.size())]
    store.set(keys[of.rank()], str(_num_groups()))
    store.wait(keys, timeout)
    most = max(int(store.get(key)) for key in keys)
    while _num_groups() < most:
        _make_idle_group()


def _num_groups() -> int:
    return len(dist.distributed_c10d._world.pg_names)


def _check_group(group: object) -> None:
    if group == dist.GroupMember.NON_GROUP_MEMBER:  # what new_group returns to ranks that it leaves out
        raise ValueError(
            f"process_group {group!r} is a group without rank {dist.get_rank()}: construct a CompressionState on the "
            "ranks of DDP's group alone, with that group"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"rank {dist.get_rank()}: process_group {group!r} is of type {type(group).__name__}: give a group as "
            "torch.distributed.new_group returns it (of a device mesh mesh.get_group()), or leave it out"
        )


def own_backend(backend: str, config: str) -> str:
    """The script's backend, with Gloo beside it where that is for GPUs alone: small messages stay on the CPU.

    On a GPU each of them would wait for what the stream has to do, a rank that is missing would be found by NCCL's
    watchdog, which ends the process without naming it, and a script may never have chosen the device that the
    process is on.

    Args:
        backend: its name, which may be ``"undefined"``.
        config: its parts by device, such as ``"cuda:nccl"``.
    """
    has_cpu = any(part.partition(":")[0] == "cpu" for part in config.split(","))
    return backend if has_cpu else f"cpu:gloo,{config}"
