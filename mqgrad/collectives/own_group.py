"""Process groups of our own beside the script's: the same ranks, and collectives that cannot interleave with its."""

import contextlib
import datetime
import hashlib
import itertools
from collections.abc import Iterator

import torch.distributed as dist

from ..checks import check_positive
from .batch_threads import starting_batch_threads
from .named_work import call_naming, waits_in

_LONGEST_TIMEOUT = 1e8  # seconds; three years (but see _LONGEST_WAIT in point_to_point.py)
CONSTRUCTION = (
    "the construction of a CompressionState, or cannot connect to it (over the network interface that "
    "GLOO_SOCKET_IFNAME names, or else that of the host's name)"
)
"""In what ranks wait for each other there."""
_IDLE = "mqgrad_idle"
"""A backend of torch.distributed."""
_idle_numbers = itertools.count()


def own_group(group: dist.ProcessGroup | None, timeout_seconds: float) -> dist.ProcessGroup:
    """A group of the same ranks whose collectives cannot interleave with the training script's.

    Every rank of the group calls it at the same point. Every wait in the group is bounded by the timeout, and so is
    that for its members here. Where the group has some of the ranks only, others may make one of theirs, or none. The
    group's threads do not interrupt those that compute (:mod:`.batch_threads`).

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
    ranks = dist.get_process_group_ranks(of)

    def construct() -> dist.ProcessGroup:
        has_some_ranks = _has_some_ranks(of)
        with contextlib.ExitStack() as prepared:
            if has_some_ranks:
                call = _have_equally_many(of, timeout)
                prepared.enter_context(_named_by(f"{of.group_name} {call}"))
                prepared.enter_context(_bound_to_no_gpu())
            prepared.enter_context(starting_batch_threads())
            made = dist.new_group(
                ranks,
                timeout=timeout,
                backend=own_backend(dist.get_backend(of), dist.get_backend_config(of)),
                use_local_synchronization=has_some_ranks,
            )
        try:
            _wait_until_all_have(made, of, timeout)
        except BaseException:
            destroy(made)
            raise
        return made

    return call_naming(waits_in(ranks, of.rank(), CONSTRUCTION), construct)


def destroy(group: dist.ProcessGroup) -> None:
    """Give a group of :func:`own_group` back; unless the script has destroyed all groups before."""
    with contextlib.suppress(ValueError):
        dist.destroy_process_group(group)
        if _has_some_ranks(group):
            _keep_names_new()


def _have_equally_many(of: dist.ProcessGroup, timeout: datetime.timedelta) -> int:
    """Have all members in as many groups as the one that is in most: by that torch before 2.14 names their next one.

    1. Every member counts this call, as the others do, and writes how many groups it is in.
    2. It waits for all others, and makes groups of itself alone, which do nothing.

    Returns:
        the number of the call.

    Raises:
        RuntimeError: a member did not come within the timeout.
    """
    store = store_of(of)
    number = store.add(f"calls of {of.rank()}", 1)
    keys = [f"groups of {rank} in call {number}" for rank in range(of.size())]
    store.set(keys[of.rank()], str(_num_groups()))
    try:
        store.wait(keys, timeout)
        if not store.check(keys):
            raise RuntimeError("a member of the group has given up, having waited for another")
        most = max(int(store.get(key)) for key in keys)
    except BaseException:  # it may be called again, and then is the call that late ones wait for
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            store.delete_key(keys[of.rank()])
            store.add(f"calls of {of.rank()}", -1)
        raise
    while _num_groups() < most:
        _make_idle_group()
    return number


def _wait_until_all_have(made: dist.ProcessGroup, of: dist.ProcessGroup, timeout: datetime.timedelta) -> None:
    """Or a member that closes its group at once would break connections that others have yet to see made.

    1. Every member counts those that have made the group, which has one name on all of them.
    2. The last one tells; all others wait for that.

    Raises:
        RuntimeError: a member did not come within the timeout.
    """
    store = store_of(of)
    if store.add(f"members that have group {made.group_name}", 1) == of.size():
        store.set(f"all have group {made.group_name}", "")
    store.wait([f"all have group {made.group_name}"], timeout)


def store_of(of: dist.ProcessGroup) -> dist.Store:
    """That by which the members found each other, as there may be no backend for messages on the CPU."""
    _, members_store = dist.distributed_c10d._world.pg_map[of]
    return dist.PrefixStore("mqgrad", members_store)


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
    with _named_by(f"idle {next(_idle_numbers)}"), _bound_to_no_gpu():
        dist.new_group([dist.get_rank()], backend=_IDLE, use_local_synchronization=True)


@contextlib.contextmanager
def _named_by(text: str) -> Iterator[None]:
    """Have torch from 2.14 on name groups of some ranks by their ranks and a text, the same on all of them.

    It names them by how many it has made, and counts them: with those that other ranks do not make, members would
    look for one another under different names, then and in the script's next groups.
    """
    world = dist.distributed_c10d._world
    count = world.group_count
    world.group_count = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
    try:
        yield
    finally:
        world.group_count = count


@contextlib.contextmanager
def _bound_to_no_gpu() -> Iterator[None]:
    """Have the default group seem to be bound to no GPU, as it is without ``init_process_group(device_id=)``.

    Otherwise torch splits a new group's communicator from that of all ranks, at once, for which NCCL waits for all of
    them, without a bound; those that make none of theirs never come. And it would look for an idle group's.
    """
    world = dist.group.WORLD
    assert world is not None
    device, world.bound_device_id = world.bound_device_id, None
    try:
        yield
    finally:
        world.bound_device_id = device


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
