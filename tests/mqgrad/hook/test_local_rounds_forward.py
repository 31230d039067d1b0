"""Rounds of local iterations of a model whose forward changes its parameters, on each rank others."""

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
        model.module.table.max_norm = None  # what was saved is compared after the next forward
        for iteration in range(1, 6):
            state.step(step(model, optimizer, rank, iteration))
        assert state.replicas_are_equal
        state.close()
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1
