"""Gathers: everyone's bytes in the order of the ranks, counted alike."""

import datetime
import gc
import itertools
import os
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import run_cases, run_ranks

from mqgrad.collectives.named_work import call_naming
from mqgrad.collectives.own_group import destroy, own_backend, own_group
from mqgrad.collectives.process_group import ProcessGroupTransport

WORLD_SIZE = 3
BY_COLLECTIVES = [False, True]


def new_transport(by_collectives: bool) -> ProcessGroupTransport:
    """By messages, as on the CPU, or by the backend's collectives, as on a GPU."""
    transport = ProcessGroupTransport(dist.group.WORLD)
    if by_collectives:
        transport._on_cpu = transport._on_gpu
    return transport


def payload_of(rank: int, numel: int) -> torch.Tensor:
    return torch.arange(numel).mul(rank + 1).add(rank).to(torch.uint8)


def test_rows_are_in_the_order_of_the_ranks() -> None:
    def rank_main(rank: int, numel: int, by_collectives: bool) -> tuple[bool, float]:
        transport = new_transport(by_collectives)
        rows = transport.all_gather(payload_of(rank, numel))
        expected = [payload_of(r, numel) for r in range(WORLD_SIZE)]
        return torch.equal(rows, torch.stack(expected)), transport.wire_bytes

    cases = list(itertools.product([0, 1, 40, 2**17], BY_COLLECTIVES))
    for (numel, by_collectives), results in run_cases(rank_main, cases, WORLD_SIZE).items():
        expected = (True, numel * (WORLD_SIZE - 1))
        assert results == (expected,) * WORLD_SIZE, (numel, by_collectives)


def test_payloads_of_several_lengths_come_as_they_are() -> None:
    def rank_main(rank: int, lengths: tuple[int, ...], by_collectives: bool) -> tuple[bool, float]:
        transport, own = new_transport(by_collectives), payload_of(rank, lengths[rank])
        got = transport.start_joined_all_gather(own, lengths).wait()
        expected = [payload_of(r, length) for r, length in enumerate(lengths)]
        return torch.equal(got, torch.cat(expected)), transport.wire_bytes

    all_lengths = [(n, n + step, n + 2 * step) for n in (0, 1, 2**17) for step in (0, 5)]
    cases = list(itertools.product(all_lengths, BY_COLLECTIVES))
    for (lengths, by_collectives), results in run_cases(rank_main, cases, WORLD_SIZE).items():
        sent = [length * (WORLD_SIZE - 1) for length in lengths]
        assert results == tuple((True, each) for each in sent), (lengths, by_collectives)


def test_everyone_gets_its_part_of_everyones_payloads() -> None:
    def rank_main(rank: int, lengths: tuple[int, ...], by_collectives: bool) -> tuple[bool, float]:
        transport, payloads = new_transport(by_collectives), payload_of(rank, sum(lengths))
        got = transport.start_all_to_all(payloads, lengths).wait()
        expected = [payload_of(r, sum(lengths)).split(lengths)[rank] for r in range(WORLD_SIZE)]
        return torch.equal(got, torch.stack(expected)), transport.wire_bytes

    cases = list(itertools.product([(4, 4, 4), (0, 5, 2**17)], BY_COLLECTIVES))
    for (lengths, by_collectives), results in run_cases(rank_main, cases, WORLD_SIZE).items():
        expected = tuple((True, sum(lengths) - own) for own in lengths)
        assert results == expected, (lengths, by_collectives)


def test_groups_of_some_ranks_do_not_meet() -> None:
    """Each makes its own without the others, who would otherwise take it for theirs."""

    def rank_main(rank: int) -> list[list[int]]:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        transport = ProcessGroupTransport(own_group(pairs[rank // 2], 10.0))
        rows = transport.all_gather(torch.tensor([rank]))
        transport.close()
        return rows.tolist()

    assert run_ranks(rank_main, 4) == [[[0], [1]]] * 2 + [[[2], [3]]] * 2


def test_a_group_of_some_ranks_is_not_split_from_one_bound_to_a_gpu() -> None:
    """For that all ranks would have to come, and what is not NCCL's has nothing to split."""

    def rank_main(rank: int) -> list[list[int]]:
        pair = dist.new_group([0, 1])
        if rank == 0:  # the other one makes a group that does nothing, to be in as many
            dist.new_group([0], use_local_synchronization=True)
        world, gpu = dist.group.WORLD, torch.device("cuda", 0)
        world.bound_device_id = gpu  # as init_process_group(device_id=) does
        if rank == 2:
            return [[0], [1]]
        transport = ProcessGroupTransport(own_group(pair, 10.0))
        rows = transport.all_gather(torch.tensor([rank]))
        transport.close()
        assert world.bound_device_id == gpu
        world.bound_device_id = None
        return rows.tolist()

    assert run_ranks(rank_main, 3) == [[[0], [1]]] * 3


@pytest.mark.parametrize("late", [0, 1, 3])
def test_groups_of_some_ranks_that_follow_others_have_names_of_their_own(late: int) -> None:
    """With an old one's name a rank that is early looks for the others at addresses that are gone."""

    def rank_main(rank: int) -> list[int]:
        members = dist.new_group([0, 1, 3])
        if rank == 2:
            return [0, 1, 3]
        first, stays = (ProcessGroupTransport(own_group(members, 10.0)) for _ in range(2))
        first.close()
        time.sleep(0.5 * (rank == late))
        for _ in range(2):
            transport = ProcessGroupTransport(own_group(members, 10.0))
            rows = transport.all_gather(torch.tensor([rank]))
            transport.close()
        assert torch.equal(rows, stays.all_gather(torch.tensor([rank])))
        stays.close()
        return rows.flatten().tolist()

    assert run_ranks(rank_main, 4) == [[0, 1, 3]] * 4


@pytest.mark.parametrize("more", [0, 1])
def test_members_of_a_group_of_some_ranks_may_be_in_more_groups_than_others(more: int) -> None:
    """Each looked for the others under a name of its own, until the timeout."""

    def rank_main(rank: int) -> list[int]:
        members = dist.new_group([0, 1])
        for _ in range(3):
            dist.new_group([more, 2])
        rows = torch.tensor([[0], [1]])
        for _ in range(2 * (rank in (0, 1))):
            transport = ProcessGroupTransport(own_group(members, 10.0))
            rows = transport.all_gather(torch.tensor([rank]))
            transport.close()
        dist.barrier()  # a process that ends may be one that another still connects to
        return rows.flatten().tolist()

    assert run_ranks(rank_main, 3) == [[0, 1]] * 3


def test_the_scripts_next_groups_do_not_notice_those_of_some_ranks() -> None:
    """Torch numbers them, on all ranks alike: also on one that has made none of ours."""

    def rank_main(rank: int) -> int:
        members = dist.new_group([0, 1])
        for _ in range(2 * (rank < 2)):
            ProcessGroupTransport(own_group(members, 10.0)).close()
        others = dist.new_group([1, 2], timeout=datetime.timedelta(seconds=10))
        total = torch.tensor([rank])
        if rank > 0:
            dist.all_reduce(total, group=others)
        dist.barrier()
        return int(total.item())

    assert run_ranks(rank_main, 3) == [0, 3, 3]


def test_no_rank_has_its_group_before_all_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that closed it at once broke a connection that another had yet to see made, which failed: seldom."""
    new_group = dist.new_group

    def rank_main(rank: int) -> float:
        def slow_group(*arguments: object, **named: object) -> dist.ProcessGroup:
            made = new_group(*arguments, **named)
            time.sleep(1.0 if rank == 0 else 0.0)
            return made

        monkeypatch.setattr(dist, "new_group", slow_group)
        began = time.monotonic()
        destroy(own_group(None, 10.0))
        return time.monotonic() - began

    assert min(run_ranks(rank_main)) > 0.9


def test_a_member_of_a_group_of_some_ranks_that_does_not_come_is_told_in_time() -> None:
    def rank_main(rank: int) -> float:
        members = dist.new_group([0, 1])
        began = time.monotonic()
        if rank == 0:
            with pytest.raises(RuntimeError) as raised:
                own_group(members, 1.0)
            assert "rank 0 of 2 waited in vain for another one in the construction of" in str(raised.value)
            assert "its own log says why" in str(raised.value)
        seconds = time.monotonic() - began
        dist.barrier()
        return seconds

    assert run_ranks(rank_main, 3)[0] < 5


def test_a_group_of_some_ranks_leaves_no_threads_and_files_behind() -> None:
    """A script that trains run after run in one of its groups went out of both."""

    def rank_main(rank: int) -> list[tuple[int, int]]:
        members = dist.new_group([0, 1])
        left = []
        for _ in range(3 if rank < 2 else 0):
            transport = ProcessGroupTransport(own_group(members, 10.0))
            transport.all_gather(torch.tensor([rank]))
            transport.close()
            left.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
        return left

    for left in run_ranks(rank_main, 3)[:2]:
        assert left[2] == left[0]


def test_one_rank_sends_nothing() -> None:
    def rank_main(rank: int) -> float:
        transport = ProcessGroupTransport(own_group(None, 10.0))
        transport.broadcast_(torch.ones(3))
        transport.all_gather(torch.ones(3))
        transport.close()
        return transport.wire_bytes

    assert run_ranks(rank_main, 1) == [0]


@pytest.mark.parametrize(
    ("collective", "named"), [("all_reduce_", "an all-reduce"), ("broadcast_", "a broadcast")]
)
def test_an_error_of_a_collective_says_who_waited_in_what_and_what_to_do(collective: str, named: str) -> None:
    def rank_main(rank: int) -> str:
        transport = ProcessGroupTransport(own_group(None, 2.0))
        dist.barrier()
        told = ""
        if rank == 1:
            with pytest.raises(RuntimeError) as raised:
                getattr(transport, collective)(torch.ones(3))
            told = str(raised.value)
        dist.barrier()
        return told

    told = run_ranks(rank_main, 2)[1]
    assert f"rank 1 of 2 waited in vain for another one in {named}" in told
    assert "its own log says why" in told
    assert "timeout_seconds" in told


BACKENDS_OWN: dict[str, Callable[[ProcessGroupTransport, torch.Tensor], object]] = {
    "all_reduce_": lambda transport, tensor: transport.all_reduce_(tensor),
    "broadcast_": lambda transport, tensor: transport.broadcast_(tensor),
    "start_gather": lambda transport, tensor: transport.start_gather(tensor).wait(),
    "start_fan_out": lambda transport, tensor: transport.start_fan_out(tensor).wait(),
    "on a GPU": lambda transport, tensor: transport._on_gpu.start_all_gather(
        torch.empty(2 * tensor.numel()), tensor, [tensor.numel()] * 2
    ).wait(),
}


@pytest.mark.parametrize("name", BACKENDS_OWN)
def test_a_collective_of_the_backend_does_not_wait_before_messages_have_passed(name: str) -> None:
    """One rank begins it before it ends an all-gather that the kernel does not take at once, the other one after;
    rank 0 sends to the other one, or waits for it."""
    early = 0 if name == "start_gather" else 1

    def rank_main(rank: int) -> list[float]:
        transport = ProcessGroupTransport(own_group(None, 10.0))
        gathered, tensor = transport.start_all_gather(torch.full((2**22,), float(rank))), torch.ones(3)
        if rank == early:
            BACKENDS_OWN[name](transport, tensor)
        rows = gathered.wait()
        if rank != early:
            BACKENDS_OWN[name](transport, tensor)
        transport.close()
        return rows[:, -1].tolist()

    assert run_ranks(rank_main, 2) == [[0, 1]] * 2


def test_a_group_that_cannot_connect_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_main(rank: int) -> int:
        dist.barrier()  # of the default group, which has its threads from then on
        threads = len(os.listdir("/proc/self/task"))
        group = own_group(None, 10.0)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such")
        with pytest.raises(RuntimeError, match="has no IPv4 or global IPv6 address"):
            ProcessGroupTransport(group)
        del group
        gc.collect()
        return len(os.listdir("/proc/self/task")) - threads

    assert run_ranks(rank_main, 2) == [0, 0]


def test_a_lack_of_memory_here_is_nobody_elses_fault() -> None:
    def start() -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError, match=r"^no room$"):
        call_naming("rank 0 of 2 waited in vain for another one", start)


@pytest.mark.parametrize(
    ("backend", "config", "own"),
    [
        ("gloo", "cpu:gloo,cuda:gloo", "gloo"),
        ("undefined", "cpu:gloo", "undefined"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("nccl", "cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("undefined", "cuda:nccl", "cpu:gloo,cuda:nccl"),
    ],
)
def test_there_is_always_a_backend_for_messages_on_the_cpu(backend: str, config: str, own: str) -> None:
    assert own_backend(backend, config) == own


def test_the_script_may_have_given_its_backend_by_device() -> None:
    def rank_main(rank: int) -> torch.Tensor:
        transport = ProcessGroupTransport(own_group(dist.new_group(backend="cpu:gloo"), 30))
        rows = transport.all_gather(payload_of(rank, 5))
        total = torch.full((3,), float(rank))
        transport.all_reduce_(total)
        transport.close()
        return torch.cat([rows.flatten(), total])

    expected = torch.cat([payload_of(rank, 5) for rank in range(2)] + [torch.ones(3)])
    assert all(torch.equal(got, expected) for got in run_ranks(rank_main, 2))
