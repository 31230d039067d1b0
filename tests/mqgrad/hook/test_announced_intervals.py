"""Intervals that a caller announces: what it costs and shows is what it is under a controller."""

import itertools
import time

import models
import pytest
from ranks import run_ranks

import mqgrad

INTERVAL = 8
CHECK_BYTES = 64
"""To one other rank."""


def train_interval(run: models.Run, rank: int, bits: int, begun: int) -> list[bytes]:
    model, optimizer, state = run
    state.begin_interval(INTERVAL, bits)
    gradients = models.train(model, optimizer, state, rank, range(begun, begun + INTERVAL))
    assert len(state.take_statistics().losses) == INTERVAL
    return gradients


def sent_by_iteration(run: models.Run, rank: int, iterations: range) -> list[float]:
    model, optimizer, state = run
    sent = [state.totals.wire_bytes]
    for iteration in iterations:
        models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
        sent.append(state.totals.wire_bytes)
    return [after - before for before, after in itertools.pairwise(sent)]


@pytest.mark.parametrize("bits", [4, 32])
def test_ranks_check_that_they_agree_where_it_begins_and_not_in_each_iteration(bits: int) -> None:
    def rank_main(rank: int) -> tuple[list[float], list[float]]:
        run = models.new_run(None)
        state = run[2]
        train_interval(run, rank, bits, 0)  # the first three iterations are checked in any case
        state.begin_interval(INTERVAL, bits)
        announced = sent_by_iteration(run, rank, range(INTERVAL, 2 * INTERVAL))
        afterwards = sent_by_iteration(run, rank, range(2 * INTERVAL, 2 * INTERVAL + 2))
        state.close()
        return announced, afterwards

    for announced, afterwards in run_ranks(rank_main):
        gradient = announced[2]
        extra = [sent - gradient for sent in announced]
        learns = [nbytes for nbytes in extra[1:] if nbytes != 0]  # of the code, a collective of its own
        assert extra[0] == CHECK_BYTES
        assert len(learns) <= 1
        assert [sent - gradient for sent in afterwards] == [CHECK_BYTES] * 2


def test_gradients_are_those_of_a_controller_that_chooses_the_same_widths() -> None:
    widths = [8, 2, 4]

    def rank_main(rank: int) -> bool:
        run = models.new_run(None)
        announced = [train_interval(run, rank, bits, INTERVAL * i) for i, bits in enumerate(widths)]
        run[2].close()
        model, optimizer, state = models.new_run(Chosen(widths))
        chosen = models.train(model, optimizer, state, rank, range(INTERVAL * len(widths)))
        state.close()
        return [gradient for interval in announced for gradient in interval] == chosen

    assert run_ranks(rank_main) == [True] * 2


class Chosen(mqgrad.FixedBits):
    """One width after another."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__(widths[0], interval=INTERVAL)
        self._next = iter(widths[1:])

    @property
    def opening(self) -> int:
        return INTERVAL

    def decide(self, statistics: mqgrad.IntervalStatistics) -> int:
        return next(self._next, 32)


@pytest.mark.parametrize(
    ("intervals", "message"),
    [
        (((8, 2), (8, 4)), r"bit width \(rank 0: 2, rank 1: 4\)"),
        (((8, 4), (6, 4)), r"announced iterations \(rank 0: 8, rank 1: 6\)"),
        (((8, 4), None), r"announced iterations \(rank 0: 8, rank 1: 0\)"),
    ],
)
def test_ranks_that_announce_different_ones_are_told(intervals, message: str) -> None:
    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(None)
        state.set_width(4)
        models.train(model, optimizer, state, rank, range(4))
        if intervals[rank] is not None:
            state.begin_interval(*intervals[rank])
        with pytest.raises(RuntimeError, match=message):
            models.train(model, optimizer, state, rank, range(4, 6))
        state.close()

    run_ranks(rank_main)


def test_another_width_within_one_begins_another() -> None:
    """As after a break, or an exception in the caller's loop; set_width() alone would not be compared."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(None)
        state.begin_interval(4, 4)
        models.train(model, optimizer, state, rank, range(1))
        with pytest.raises(RuntimeError, match=r"on rank \d: 3 iterations are left of the interval"):
            state.set_width(8)
        state.begin_interval(3, 16)
        state.begin_interval(2, 8)  # nor has the last one to be begun
        models.train(model, optimizer, state, rank, range(1, 3))
        assert state.bits == 8
        assert len(state.take_statistics().losses) == 2
        state.set_width(2)
        models.train(model, optimizer, state, rank, range(3, 4))
        assert state.bits == 2
        state.close()

    run_ranks(rank_main)


def test_statistics_taken_late_are_those_of_the_last_interval() -> None:
    def rank_main(rank: int) -> tuple[int, bool]:
        model, optimizer, state = models.new_run(None)
        for begun in range(0, 12, 4):
            state.begin_interval(4, 32)
            models.train(model, optimizer, state, rank, range(begun, begun + 4))
        taken = state.take_statistics()
        state.close()
        return len(taken.losses), taken.local_norm_sq > 0

    assert run_ranks(rank_main) == [(4, True)] * 2


def test_statistics_are_not_taken_within_one() -> None:
    """On one rank alone that would shift the iterations from which its code learns."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(None)
        state.begin_interval(4, 4)
        models.train(model, optimizer, state, rank, range(3))
        with pytest.raises(RuntimeError, match=r"on rank \d, 1 iterations before the interval ends"):
            state.take_statistics()
        models.train(model, optimizer, state, rank, range(3, 4))
        assert len(state.take_statistics().losses) == 4
        state.close()

    run_ranks(rank_main)


def test_ranks_are_compared_by_what_they_had_when_it_began() -> None:
    """The check is made by another thread, while a script goes on."""

    def rank_main(rank: int) -> int:
        model, optimizer, state = models.new_run(None)
        for begun in range(0, 12, 4):
            models.train(model, optimizer, state, rank, range(begun, begun + 2))
            state.begin_interval(2, 4)
            time.sleep(0.02 * rank)
            state.take_statistics()
            models.train(model, optimizer, state, rank, range(begun + 2, begun + 4))
        state.close()
        return state.totals.iterations

    assert run_ranks(rank_main) == [12] * 2


def test_a_state_that_is_loaded_knows_of_none() -> None:
    """All ranks load, and nothing says that their callers go on alike."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(None)
        state.begin_interval(6, 4)
        models.train(model, optimizer, state, rank, range(2))
        state.load_state_dict(state.state_dict())
        state.set_width(8)
        models.train(model, optimizer, state, rank, range(2, 4))
        state.close()

    run_ranks(rank_main)
