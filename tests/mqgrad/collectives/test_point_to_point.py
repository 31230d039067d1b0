"""Messages between all ranks: posted early, sent late, and never waited for without a bound."""

import datetime
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from mqgrad.collectives.point_to_point import PointToPoint

WORLD_SIZE = 3


def payload(sender: int, receiver: int, number: int) -> torch.Tensor:
    """Of another length and content for each; empty where nothing is to be sent."""
    return torch.full((7 * number * (receiver + 1),), 50 * number + 10 * sender + receiver, dtype=torch.uint8)


def lengths(number: int) -> list[int]:
    return [payload(0, receiver, number).numel() for receiver in range(WORLD_SIZE)]


def payloads_from(sender: int, number: int) -> torch.Tensor:
    return torch.cat([payload(sender, receiver, number) for receiver in range(WORLD_SIZE)])


def payloads_to(receiver: int, number: int) -> torch.Tensor:
    return torch.stack([payload(sender, receiver, number) for sender in range(WORLD_SIZE)])


def room_at(rank: int, number: int) -> torch.Tensor:
    return torch.zeros_like(payloads_to(rank, number))


def test_what_was_posted_first_may_be_sent_and_awaited_last() -> None:
    """The order in which they are posted tells them apart."""

    def rank_main(rank: int) -> list[bool]:
        messages = PointToPoint(dist.group.WORLD)
        received = [room_at(rank, number) for number in range(4)]
        sends = [messages.post_all_to_all(room, lengths(number)) for number, room in enumerate(received)]
        order = [2, 0, 3, 1] if rank == 0 else [0, 1, 2, 3]
        works = [sends[number](payloads_from(rank, number)) for number in order]
        for work in reversed(works):
            work.wait()
        return [torch.equal(got, payloads_to(rank, number)) for number, got in enumerate(received)]

    assert run_ranks(rank_main, WORLD_SIZE) == [[True] * 4] * WORLD_SIZE


def errors_of_rank_2(does: str) -> list[tuple[float, str]]:
    """Seconds and error of each rank, where the others exchange payloads and rank 2 does something else."""

    def rank_main(rank: int) -> tuple[float, str]:
        short = PointToPoint(dist.new_group(timeout=datetime.timedelta(seconds=2), backend="gloo"))
        dist.barrier()
        start, error = time.perf_counter(), ""
        try:
            if rank != 2:
                short.post_all_to_all(room_at(rank, 1), lengths(1))(payloads_from(rank, 1)).wait()
            elif does != "nothing":
                own = torch.ones(7, dtype=torch.uint8 if does == "gathers codes" else torch.float64)
                short.post_all_gather(own.repeat(3), [7] * 3)(own).wait()
        except RuntimeError as raised:
            error = str(raised)
        seconds = time.perf_counter() - start
        dist.barrier()
        return seconds, error

    return run_ranks(rank_main, WORLD_SIZE)


def test_what_is_not_sent_is_waited_for_within_bounds() -> None:
    results = errors_of_rank_2("nothing")[:2]
    for rank, (seconds, error) in enumerate(results):
        assert seconds < 20
        assert f"rank {rank} of 3 waited in vain for rank " in error
        assert "timeout_seconds" in error
    assert any("for rank 2: " in error for _, error in results)
    # Who times out first closes its connections.
    assert any("Timed out" in error for _, error in results)


@pytest.mark.parametrize("does", ["gathers codes", "gathers figures"])
def test_ranks_out_of_step_do_not_take_one_thing_for_another(does: str) -> None:
    """Nor does Gloo abort, as it does where a message is longer than the room for it."""
    for seconds, error in errors_of_rank_2(does):
        assert seconds < 20
        assert error


def test_what_was_posted_can_be_given_up() -> None:
    """Where all ranks fail before they send: other messages still pass."""

    def rank_main(rank: int) -> bool:
        messages, received = PointToPoint(dist.group.WORLD), room_at(rank, 2)
        messages.post_all_to_all(room_at(rank, 3), lengths(3))
        messages.post_all_to_all(received, lengths(2))(payloads_from(rank, 2)).wait()
        return torch.equal(received, payloads_to(rank, 2))

    assert all(run_ranks(rank_main, WORLD_SIZE))
