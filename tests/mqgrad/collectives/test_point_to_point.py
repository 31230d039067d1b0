"""Messages between all ranks: in any order of waiting, of any length, and never waited for without a bound."""

import contextlib
import datetime
import os
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run_cases, run_ranks

from mqgrad.collectives.point_to_point import PointToPoint
from mqgrad.collectives.wire_meter import Work

WORLD_SIZE = 3


def payload(sender: int, receiver: int, number: int) -> torch.Tensor:
    """Of another length and content for each; empty where nothing is to be sent."""
    return torch.full((7 * number * (receiver + 1),), 50 * number + 10 * sender + receiver, dtype=torch.uint8)


def payloads_to(receiver: int, number: int) -> torch.Tensor:
    return torch.stack([payload(sender, receiver, number) for sender in range(WORLD_SIZE)])


def started(messages: PointToPoint, rank: int, number: int) -> tuple[Work, torch.Tensor]:
    """The all-to-all of a number, and where its payloads arrive."""
    received = torch.zeros_like(payloads_to(rank, number))
    payloads = [payload(rank, receiver, number) for receiver in range(WORLD_SIZE)]
    lengths = [len(each) for each in payloads]
    return messages.start_all_to_all(received, torch.cat(payloads), lengths), received


def test_what_was_started_first_may_be_awaited_last() -> None:
    def rank_main(rank: int) -> list[bool]:
        messages = PointToPoint(dist.group.WORLD)
        under_way = [started(messages, rank, number) for number in range(4)]
        order = [2, 0, 3, 1] if rank == 0 else [0, 1, 2, 3]
        for number in order:
            under_way[number][0].wait()
        messages.close()
        return [torch.equal(got, payloads_to(rank, number)) for number, (_, got) in enumerate(under_way)]

    assert run_ranks(rank_main, WORLD_SIZE) == [[True] * 4] * WORLD_SIZE


def test_messages_longer_than_the_kernel_takes_pass_both_ways_at_once() -> None:
    """Where everyone first sent all of its own, nobody would receive, and all would wait forever."""

    def rank_main(rank: int, dtype: torch.dtype) -> bool:
        messages = PointToPoint(dist.group.WORLD)
        own = torch.arange(2**22).add(rank).to(dtype)
        gathered = torch.zeros(2, WORLD_SIZE * len(own), dtype=dtype)
        works = [messages.start_all_gather(row, own, [len(own)] * WORLD_SIZE) for row in gathered]
        for work in works:
            work.wait()
        messages.close()
        expected = torch.cat([torch.arange(2**22).add(sender).to(dtype) for sender in range(WORLD_SIZE)])
        return all(torch.equal(row, expected) for row in gathered)

    cases = [(torch.uint8,), (torch.bfloat16,), (torch.float64,)]
    results = run_cases(rank_main, cases, WORLD_SIZE)
    assert set(results.values()) == {(True,) * WORLD_SIZE}


def errors_beside_rank_2(does: str, timeout: float = 20.0) -> list[tuple[float, str]]:
    """Seconds and error of each rank, where the others exchange payloads and rank 2 does something else."""

    def rank_main(rank: int) -> tuple[float, str]:
        short = PointToPoint(dist.new_group(timeout=datetime.timedelta(seconds=timeout), backend="gloo"))
        dist.barrier()
        start, error = time.perf_counter(), ""
        try:
            if rank != 2:
                started(short, rank, 1)[0].wait()
            elif does == "sends other bytes":
                gathered, own = torch.zeros(15, dtype=torch.uint8), torch.ones(5, dtype=torch.uint8)
                short.start_all_gather(gathered, own, [5] * 3).wait()
            elif does == "sends what follows":
                short._number += 1
                started(short, rank, 1)[0].wait()
            elif does == "closes":
                for peer in short._peers.values():
                    os.dup(peer.connection.fileno())  # as a process has that C code has forked
                short.close()
        except RuntimeError as raised:
            error = str(raised)
        seconds = time.perf_counter() - start
        dist.barrier()
        return seconds, error

    return run_ranks(rank_main, WORLD_SIZE)


def test_what_is_not_sent_is_waited_for_within_bounds() -> None:
    results = errors_beside_rank_2("nothing", timeout=2.0)[:2]
    for rank, (seconds, error) in enumerate(results):
        assert seconds < 20
        assert f"rank {rank} of 3 waited in vain for rank " in error
        assert "timeout_seconds" in error
    # Who times out first closes its connections.
    assert any("for rank 2: timed out after 2 s" in error for _, error in results)


@pytest.mark.parametrize("does", ["sends other bytes", "sends what follows"])
def test_ranks_out_of_step_find_out_at_once(does: str) -> None:
    results = errors_beside_rank_2(does)
    assert max(seconds for seconds, _ in results) < 10
    assert all(error for _, error in results)
    assert any("it is out of step: it has sent " in error for _, error in results)


def test_a_rank_that_has_closed_its_connections_is_missed_at_once() -> None:
    for seconds, error in errors_beside_rank_2("closes")[:2]:
        assert seconds < 10
        assert "waited in vain for rank " in error
        assert "losed" in error or "reset" in error or "roken" in error


def test_after_a_failure_everything_fails_alike() -> None:
    def rank_main(rank: int) -> list[str]:
        messages = PointToPoint(dist.group.WORLD)
        if rank == 2:
            messages.close()
        errors = []
        for _ in range(2):
            with pytest.raises(RuntimeError) as raised:
                started(messages, rank, 1)[0].wait()
            errors.append(str(raised.value))
        return errors

    for errors in run_ranks(rank_main, WORLD_SIZE):
        assert errors[0] == errors[1]


def test_what_has_begun_wrong_does_not_end_well() -> None:
    """Of two exchanges under way the first begins as none that is expected, and both are waited for."""

    def rank_main(rank: int) -> list[str]:
        messages = PointToPoint(dist.group.WORLD)
        messages._number += 7 * (rank == 2)
        errors = []
        with contextlib.suppress(RuntimeError):  # another rank may have found out before this one starts both
            works = [started(messages, rank, number)[0] for number in (1, 2)]
            for work in reversed(works):
                with pytest.raises(RuntimeError) as raised:
                    work.wait()
                errors.append(str(raised.value))
        return errors

    results = [errors for errors in run_ranks(rank_main, WORLD_SIZE) if errors]
    assert results
    assert all(first == second for first, second in results)


def test_a_forked_process_does_not_hold_the_connections() -> None:
    """Or those of a rank that is killed would stay open as long as its DataLoader's workers live."""

    def rank_main(rank: int) -> bool:
        messages = PointToPoint(dist.group.WORLD)
        descriptors = [peer.connection.fileno() for peer in messages._peers.values()]
        child = os.fork()
        if child == 0:
            is_refused = False
            try:
                started(messages, rank, 1)
            except RuntimeError as error:
                is_refused = "a forked process cannot use the connections" in str(error)
            held = sum(os.path.exists(f"/proc/self/fd/{descriptor}") for descriptor in descriptors)
            os._exit(held if is_refused else 99)
        _, status = os.waitpid(child, 0)
        work, received = started(messages, rank, 1)  # while this process does
        work.wait()
        messages.close()
        return os.waitstatus_to_exitcode(status) == 0 and torch.equal(received, payloads_to(rank, 1))

    assert all(run_ranks(rank_main, WORLD_SIZE))


def test_what_is_not_cut_as_it_should_be_is_refused() -> None:
    def rank_main(rank: int) -> None:
        messages = PointToPoint(dist.group.WORLD)
        with pytest.raises(ValueError, match="do not make up a tensor of 4"):
            messages.start_all_gather(torch.zeros(4), torch.zeros(2), [2])

    run_ranks(rank_main, 1)
