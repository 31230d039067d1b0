"""Messages between all ranks: posted early, sent late, and never waited for without a bound."""

import datetime
import time

import torch
import torch.distributed as dist
from ranks import run_ranks

from mqgrad.point_to_point import PointToPoint

WORLD_SIZE = 3


def message(sender: int, receiver: int, number: int) -> torch.Tensor:
    """Of another length and content for each; empty where nothing is to be sent."""
    return torch.full((7 * number * (receiver + 1),), 50 * number + 10 * sender + receiver, dtype=torch.uint8)


def messages_from(sender: int, number: int) -> list[torch.Tensor]:
    return [message(sender, receiver, number) for receiver in range(WORLD_SIZE)]


def messages_to(receiver: int, number: int) -> list[torch.Tensor]:
    return [message(sender, receiver, number) for sender in range(WORLD_SIZE)]


def room_at(rank: int, number: int) -> list[torch.Tensor]:
    return [torch.zeros_like(each) for each in messages_to(rank, number)]


def test_what_was_posted_first_may_be_sent_and_awaited_last() -> None:
    """The order in which they are posted tells them apart."""

    def rank_main(rank: int) -> list[bool]:
        group = PointToPoint(dist.group.WORLD)
        received = [room_at(rank, number) for number in range(4)]
        exchanges = [group.post(room) for room in received]
        order = [2, 0, 3, 1] if rank == 0 else [0, 1, 2, 3]
        works = [exchanges[number](messages_from(rank, number)) for number in order]
        for work in reversed(works):
            work.wait()
        return [
            torch.equal(torch.cat(got), torch.cat(messages_to(rank, number)))
            for number, got in enumerate(received)
        ]

    assert run_ranks(rank_main, WORLD_SIZE) == [[True] * 4] * WORLD_SIZE


def test_what_is_not_sent_is_waited_for_within_bounds() -> None:
    def rank_main(rank: int) -> tuple[float, str]:
        short = dist.new_group(timeout=datetime.timedelta(seconds=1), backend="gloo")
        exchange = PointToPoint(short).post(room_at(rank, 1))
        start, error = time.perf_counter(), ""
        if rank != 2:
            try:
                exchange(messages_from(rank, 1)).wait()
            except RuntimeError as raised:
                error = str(raised)
        seconds = time.perf_counter() - start
        dist.barrier()
        return seconds, error

    for seconds, error in run_ranks(rank_main, WORLD_SIZE)[:2]:
        assert seconds < 20
        assert "Timed out" in error


def test_what_was_posted_can_be_given_up() -> None:
    """Where all ranks fail before they send: other messages still pass, and the process ends in order."""

    def rank_main(rank: int) -> bool:
        group, received = PointToPoint(dist.group.WORLD), room_at(rank, 2)
        group.post(room_at(rank, 3))
        group.post(received)(messages_from(rank, 2)).wait()
        return torch.equal(torch.cat(received), torch.cat(messages_to(rank, 2)))

    assert all(run_ranks(rank_main, WORLD_SIZE))
