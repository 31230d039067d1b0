"""What becomes of a round of local iterations in which one rank meets a NaN."""

import copy
from typing import Any

import models
import pytest
import torch
from ranks import run_ranks
from rounds import assert_as_by_hand, by_hand, in_rounds, raw
from torch import nn

import mqgrad

SHARDED = "quantized:topology=sharded"  # with residuals on both ways


def saved(run: models.Run) -> dict[str, Any]:
    model, optimizer, state = run
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "mqgrad": state.state_dict()}
    return copy.deepcopy(parts)


def restore(run: models.Run, checkpoint: dict[str, Any]) -> None:
    model, optimizer, state = run
    parts = copy.deepcopy(checkpoint)
    model.load_state_dict(parts["model"])
    optimizer.load_state_dict(parts["optimizer"])
    state.load_state_dict(parts["mqgrad"])


def residuals(state: mqgrad.CompressionState, way: str) -> dict[int, torch.Tensor]:
    """By parameter; on the way back zero where other ranks take the mean."""
    saved = state.state_dict()["compressor"]
    if way == "push":
        return saved["push_feedback"]
    whole = {key: torch.zeros_like(held) for key, held in saved["push_feedback"].items()}
    for key, (piece, start, *_) in saved["pull_feedback"].items():
        whole[key][start : start + len(piece)] = piece
    return whole


@pytest.mark.parametrize("bits", [4, 32])
def test_a_nan_in_mid_round_is_on_all_ranks_at_its_end_and_a_checkpoint_undoes_it(bits: float) -> None:
    """It is in the anchors and velocities too, but not in the residuals."""

    def rank_main(rank: int) -> None:
        run = models.new_run(
            mqgrad.FixedBits(bits, interval=1), compressor=SHARDED, period=3, slow_momentum=0.5
        )
        model, optimizer, state = run
        models.train(*run, rank, range(4))
        checkpoint = saved(run)
        straight = models.train(*run, rank, range(4, 12))
        restore(run, checkpoint)
        optimizer.zero_grad()
        x, y = models.batch(rank, 4)
        loss = nn.functional.cross_entropy(model(x), y) * (torch.nan if rank == 1 else 1.0)
        loss.backward()
        optimizer.step()
        state.step(loss)
        assert bool(models.parameters_of(model).isnan().any()) == (rank == 1)
        models.train(*run, rank, range(5, 6))
        assert state.replicas_are_equal
        assert models.parameters_of(model).isnan().all()
        rounds = state.state_dict()["rounds"]
        for held in (*rounds["anchors"].values(), *rounds["velocities"].values()):
            assert held.isnan().all()
        for way in ("push", "pull"):
            assert len(residuals(state, way)) == (0 if bits == 32 else len(list(model.parameters())))
            assert all(held.isfinite().all() for held in residuals(state, way).values())
        restore(run, checkpoint)
        assert models.train(*run, rank, range(4, 12)) == straight
        state.close()

    run_ranks(rank_main)


@pytest.mark.parametrize(("bits", "lost"), [(4, 512), (16, 1), (32, 1)])
def test_what_one_element_takes_along_is_the_same_on_all_ranks(bits: float, lost: int) -> None:
    """Its scale bucket, where there is one. What the rank owed there, and what the mean did, is owed still."""

    def rank_main(rank: int) -> bytes:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(bits), compressor=SHARDED, period=2)
        models.train(model, optimizer, state, rank, range(3))
        optimizer.zero_grad()
        loss = models.backward(model, rank, 3)
        weight = model.module[0][0].weight
        if rank == 1:
            weight.grad[0, 0] = torch.nan
        optimizer.step()
        key = next(k for k, parameter in enumerate(state.parameters) if parameter is weight)
        before = {way: residuals(state, way).get(key) for way in ("push", "pull")}
        state.step(loss)
        isnan = weight.detach().flatten().isnan()
        assert isnan[:lost].all()
        assert int(models.parameters_of(model).isnan().sum()) == lost
        assert torch.equal(state.state_dict()["rounds"]["anchors"][key].flatten().isnan(), isnan)
        if bits < 32:
            stays = {way: before[way] == residuals(state, way)[key] for way in before}
            assert bool(stays["push"][:lost].all()) == (rank == 1)
            assert stays["pull"][:lost].all()
            assert not stays["push"][lost:].all()
        state.close()
        return models.parameters_of(model).nan_to_num(nan=1e6).numpy().tobytes()

    assert len(set(run_ranks(rank_main))) == 1


def test_a_rank_that_skips_a_step_of_its_own_lacks_that_step_and_spoils_nothing() -> None:
    """So does a loss scaler: there is no mean in which all ranks would see the NaN."""

    def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int):
        optimizer.zero_grad()
        loss = models.backward(model, rank, iteration)
        if (rank, iteration) == (1, 4):
            next(iter(model.parameters())).grad[0, 0] = torch.nan
        if models.gradient_of(model).isfinite().all():
            optimizer.step()
        return loss

    def rank_main(rank: int) -> bytes:
        model = in_rounds(models.small_model(), rank, take_step)
        assert_as_by_hand(model, by_hand(models.small_model, take_step))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1
