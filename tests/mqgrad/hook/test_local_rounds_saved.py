"""States of rounds that are saved where they should not be, or loaded into another model."""

import copy
from typing import Any

import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.hook.local_rounds import LocalRounds
from mqgrad.hook.round_memory import RoundMemory


def test_the_model_of_another_rank_is_noticed_within_a_round() -> None:
    """As where it was loaded before DDP wrapped it, and gave all ranks the parameters of rank 0."""

    def rank_main(rank: int) -> bool:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=4)
        models.train(model, optimizer, state, rank, range(6))
        saved, own = state.state_dict(), copy.deepcopy(model.module)
        state.finish_round()
        state.close()
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=4)
        wrapped = models.compressed_ddp(own, state)
        state.load_state_dict(saved)
        if rank == 0:
            models.backward(wrapped, rank, 6)
        else:
            with pytest.raises(RuntimeError, match="load each rank's own model after DDP has wrapped it"):
                models.backward(wrapped, rank, 6)
        return True

    assert run_ranks(rank_main) == [True, True]


def test_another_model_is_noticed_where_a_round_has_ended() -> None:
    """As if the script forgot to load it: what it differed by was taken for a move, and coded with the residuals."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=2)
        models.train(model, optimizer, state, rank, range(4))
        saved, weights = state.state_dict(), copy.deepcopy(model.state_dict())
        state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=2)
        state.load_state_dict(saved)
        with pytest.raises(
            RuntimeError,
            match=f"rank {rank}: its parameters are not those that it had when the loaded state was saved",
        ):
            models.train(model, optimizer, state, rank, range(4, 5))
        state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=2)
        state.load_state_dict(saved)
        model.load_state_dict(weights)
        models.train(model, optimizer, state, rank, range(4, 5))
        state.close()

    run_ranks(rank_main)


def check_no_way_on(model: Any, optimizer: Any, state: mqgrad.CompressionState, rank: int) -> None:
    """Nor could a script that skips what it was in: other ranks may have gone on from the mean."""
    for go_on in (
        state.state_dict,
        lambda: models.train(model, optimizer, state, rank, range(4, 5)),
        state.finish_round,
    ):
        with pytest.raises(RuntimeError, match=r"interrupted while a round .* go back to a checkpoint"):
            go_on()


def test_an_average_that_is_interrupted_as_it_is_applied_cannot_be_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=2, slow_momentum=0.5)
        models.train(model, optimizer, state, rank, range(3))
        moved = []

        def interrupted(self: RoundMemory, key: int, *_: Any) -> torch.Tensor:
            moved.append(key)
            if len(moved) == 2:
                raise KeyboardInterrupt
            return torch.zeros_like(self._anchors[key])

        with monkeypatch.context() as patch:
            patch.setattr(RoundMemory, "_slow_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                models.train(model, optimizer, state, rank, range(3, 4))
        check_no_way_on(model, optimizer, state, rank)

    run_ranks(rank_main)


def test_an_average_that_is_interrupted_as_it_is_waited_for_cannot_be_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its residuals are those of a mean that the parameters have not moved to."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=2)
        models.train(model, optimizer, state, rank, range(3))

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(
                LocalRounds, "_apply", interrupted
            )  # as a wait for the last bucket does, which is over
            with pytest.raises(KeyboardInterrupt):
                models.train(model, optimizer, state, rank, range(3, 4))
        check_no_way_on(model, optimizer, state, rank)

    run_ranks(rank_main)


def test_a_refused_state_leaves_a_round_as_it_was() -> None:
    """What it was to be compared with, too: an iteration whose gradients do not come moves the parameters."""

    def rank_main(rank: int) -> bool:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=4)
        models.train(model, optimizer, state, rank, range(5))
        bad = state.state_dict() | {"compressor": {"x": 1}}
        with pytest.raises(ValueError, match="x"):
            state.load_state_dict(bad)
        with model.no_sync():
            models.train(model, optimizer, state, rank, range(5, 6))
        models.train(model, optimizer, state, rank, range(6, 9))
        return state.replicas_are_equal

    assert run_ranks(rank_main) == [False, False]


def test_a_round_is_not_finished_before_the_loaded_model_has_been_looked_at() -> None:
    def rank_main(rank: int) -> bool:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=4)
        models.train(model, optimizer, state, rank, range(6))
        saved = copy.deepcopy((model.state_dict(), state.state_dict()))
        models.train(model, optimizer, state, rank, range(6, 7))
        model.load_state_dict(saved[0])
        state.load_state_dict(saved[1])
        with pytest.raises(RuntimeError, match="make an iteration first"):
            state.finish_round()
        models.train(model, optimizer, state, rank, range(6, 8))
        return state.replicas_are_equal

    assert run_ranks(rank_main) == [True, True]


def test_a_loss_that_is_refused_is_no_iteration() -> None:
    def rank_main(rank: int) -> list[bool]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=2)
        loss = models.backward(model, rank, 0)
        optimizer.step()
        with pytest.raises(ValueError, match="give its mean"):
            state.step(torch.zeros(3))
        state.step(loss)
        ended = [state.replicas_are_equal]
        models.train(model, optimizer, state, rank, range(1, 2))
        return [*ended, state.replicas_are_equal]

    assert run_ranks(rank_main) == [[False, True]] * 2
