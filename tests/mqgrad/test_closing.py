"""What a closed state answers, and what closing it tells."""

import warnings
from collections.abc import Callable

import models
import pytest
from ranks import run_ranks
from scripted import Scripted

import mqgrad


@pytest.mark.parametrize("period", [1, 3])
def test_nobody_trains_on_alone_with_a_closed_state(period: int) -> None:
    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=period)
        models.train(model, optimizer, state, rank, range(3))
        state.close()
        calls: list[Callable[[], object]] = [
            lambda: models.backward(model, rank, 3),
            lambda: state.step(1.0),
            state.state_dict,
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="this CompressionState is closed"):
                call()

    run_ranks(rank_main)


def test_closing_within_a_round_is_told() -> None:
    def rank_main(rank: int) -> list[str]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=3)
        models.train(model, optimizer, state, rank, range(5))
        with pytest.warns(RuntimeWarning, match=f"rank {rank}: closed within a round, after 2 iterations"):
            state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=3)
        models.train(model, optimizer, state, rank, range(6))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state.close()

    run_ranks(rank_main)


def test_a_failure_after_the_last_step_is_told() -> None:
    class Failing(Scripted):
        def decide(self, statistics: object) -> int:
            raise ArithmeticError("no idea")

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(Failing([4, 4], interval=2))
        models.train(model, optimizer, state, rank, range(2))
        with pytest.warns(RuntimeWarning, match="failed before close.*no idea"):
            state.close()

    run_ranks(rank_main)
