"""Rounds of local iterations of a model whose forward changes its parameters, on each rank others."""

import copy
from typing import Any

import models
import pytest
from limited_table import LimitedTable, step
from ranks import run_ranks
from rounds import assert_as_by_hand, by_hand, in_rounds, raw, sgd

import mqgrad


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.filterwarnings("ignore:rank . a parameter of shape:RuntimeWarning")
def test_rounds_begin_with_the_same_parameters_on_all_ranks(world_size: int) -> None:
    def rank_main(rank: int) -> bytes:
        model = in_rounds(LimitedTable(), rank, step)
        assert_as_by_hand(model, by_hand(LimitedTable, step, world_size=world_size))
        return raw(model)

    assert len(set(run_ranks(rank_main, world_size))) == 1


@pytest.mark.parametrize("settings", [{}, {"slow_momentum": 0.5, "variance_reduced": True}])
def test_a_first_round_that_is_interrupted_begins_so_too(settings: dict[str, Any]) -> None:
    def start() -> models.Run:
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=3, **settings)
        model = LimitedTable()
        return models.compressed_ddp(model, state), sgd(model), state

    def rank_main(rank: int) -> bytes:
        model, optimizer, state = start()
        state.step(step(model, optimizer, rank, 0))
        saved, own = state.state_dict(), model.module.state_dict()
        own = {name: tensor.clone() for name, tensor in own.items()}
        state.close()
        model, optimizer, state = start()
        model.module.load_state_dict(own)
        state.load_state_dict(saved)
        for iteration in range(1, 6):
            state.step(step(model, optimizer, rank, iteration))
        assert state.replicas_are_equal
        state.close()
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1


@pytest.mark.parametrize("before", [4, 6])
@pytest.mark.filterwarnings("ignore:rank . a parameter of shape:RuntimeWarning")
def test_a_run_is_resumed_within_a_round_and_after_it(before: int) -> None:
    """Its parameters are compared with the saved state after a forward that has changed them again."""

    def start() -> models.Run:
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=3)
        model = LimitedTable()
        return models.compressed_ddp(model, state), sgd(model), state

    def train(run: models.Run, rank: int, iterations: range) -> bytes:
        model, optimizer, state = run
        for iteration in iterations:
            state.step(step(model, optimizer, rank, iteration))
        return raw(model)

    def rank_main(rank: int) -> None:
        straight, resumed = start(), start()
        train(straight, rank, range(before))
        saved = copy.deepcopy((straight[0].state_dict(), straight[2].state_dict()))
        resumed[0].load_state_dict(saved[0])
        resumed[2].load_state_dict(saved[1])
        ends = [train(run, rank, range(before, 9)) for run in (straight, resumed)]
        assert ends[0] == ends[1]
        for run in (straight, resumed):
            run[2].close()

    run_ranks(rank_main)
