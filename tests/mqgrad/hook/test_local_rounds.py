"""Rounds of local iterations: parameters are averaged through the codes, instead of gradients."""

import copy
from typing import Any

import models
import pytest
import torch
from models import batch
from ranks import run_ranks
from scripted import Scripted
from torch import nn

import mqgrad


@pytest.mark.parametrize("variance_reduced", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_at_32_bits_it_is_local_sgd_with_slow_momentum(momentum: float, variance_reduced: bool) -> None:
    period, rounds, world_size = 3, 4, 2

    def rank_main(rank: int) -> torch.Tensor:
        run = models.new_run(
            mqgrad.FixedBits(32),
            period=period,
            slow_momentum=momentum,
            variance_reduced=variance_reduced,
        )
        models.train(*run, rank, range(period * rounds))
        run[2].close()
        return models.parameters_of(run[0])

    anchor, velocity = models.parameters_of(models.small_model()), 0.0
    corrections = [torch.zeros_like(anchor) for _ in range(world_size)]
    replicas = [copy.deepcopy(models.small_model()) for _ in range(world_size)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in replicas]
    for iteration in range(period * rounds):
        for rank, (model, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            optimizer.zero_grad()
            models.backward(model, rank, iteration)
            optimizer.step()
            corrected = models.parameters_of(model) - corrections[rank]
            nn.utils.vector_to_parameters(corrected.float(), model.parameters())
        if (iteration + 1) % period == 0:
            mean = torch.stack([models.parameters_of(model) for model in replicas]).mean(0)
            if variance_reduced:
                for correction, model in zip(corrections, replicas, strict=True):
                    correction += (models.parameters_of(model) - mean) / period
            velocity = momentum * velocity + (anchor - mean)
            anchor = anchor - velocity
            for model in replicas:
                nn.utils.vector_to_parameters(anchor.float(), model.parameters())
    for parameters in run_ranks(rank_main, world_size):
        torch.testing.assert_close(parameters, anchor, rtol=0, atol=2e-6)


@pytest.mark.parametrize("bits", [0.25, 1, 4, 16, 32])
def test_replicas_are_equal_where_a_round_has_ended_and_only_there(bits: float) -> None:
    def rank_main(rank: int) -> list[tuple[bool, bytes]]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(bits), period=4)
        seen = []
        for iteration in range(12):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
            seen.append((state.replicas_are_equal, models.parameters_of(model).numpy().tobytes()))
        state.close()
        return seen

    for iteration, by_rank in enumerate(zip(*run_ranks(rank_main, 3), strict=True)):
        ends, values = zip(*by_rank, strict=True)
        assert set(ends) == {(iteration + 1) % 4 == 0}
        assert (len(set(values)) == 1) == ends[0]


@pytest.mark.parametrize(
    ("compressor", "bits"), [("quantized", 4), ("minmax:min_numel=0", 4), ("powersgd:rank=1", 32)]
)
def test_a_round_sends_what_an_iteration_would(compressor: str, bits: int) -> None:
    """After three of them, in which ranks check that they agree, and DDP regroups its buckets; and a byte for each
    parameter, which tells whether it was trained."""

    def rank_main(rank: int, period: int) -> tuple[float, int, float]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(bits), period=period, compressor=compressor)
        models.train(model, optimizer, state, rank, range(3 * period))
        before = state.totals.wire_bytes
        models.train(model, optimizer, state, rank, range(3 * period, 5 * period))
        state.close()
        return state.totals.wire_bytes - before, state.totals.iterations, state.totals.mean_bits

    every, seldom = (run_ranks(lambda rank, p=period: rank_main(rank, p))[0] for period in (1, 6))
    told = 2 * len(list(models.small_model().parameters()))
    assert every == (seldom[0] - told, 5, bits)
    assert seldom[1:] == (30, bits)


def test_a_controller_counts_rounds_and_sees_their_mean_loss_and_what_they_moved() -> None:
    period = 5

    def rank_main(rank: int) -> tuple[list[float], list[tuple[float, ...]], list[float], int]:
        controller = Scripted([4, 8, 2], interval=2)
        model, optimizer, state = models.new_run(controller, period=period)
        state.mark()
        bits, losses = [], []
        for iteration in range(6 * period):
            optimizer.zero_grad()
            loss = models.backward(model, rank, iteration)
            optimizer.step()
            state.step(loss)
            losses.append(float(loss))
            bits.append(state.bits)
        state.close()
        means = torch.tensor(losses).view(-1, period).mean(1).tolist()
        seen = [(*s.losses, s.step_seconds, s.gradient_signal + s.gradient_noise) for s in controller.seen]
        assert {s.update_exponent for s in controller.seen} == {1.0}  # a mean of moves is applied as it is
        return bits[period - 1 :: period], seen, means, len(controller.seen)

    (bits, seen, means, decisions), (_, _, other_means, _) = run_ranks(rank_main)
    assert bits == [4, 4, 8, 8, 2, 2]
    assert decisions == 3
    expected = [(a + b) / 2 for a, b in zip(means, other_means, strict=True)]
    for k, (*losses, seconds, moved) in enumerate(seen):
        assert losses == pytest.approx(expected[2 * k : 2 * k + 2], rel=1e-5)
        assert seconds > 0
        assert moved > 0


def test_seconds_count_as_they_pass_and_iterations_where_a_round_ends() -> None:
    def rank_main(rank: int) -> list[tuple[bool, int]]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=3)
        state.mark()
        seen, before = [], 0.0
        for iteration in range(6):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
            seen.append((state.totals.step_seconds > before, state.totals.iterations))
            before = state.totals.step_seconds
        state.close()
        return seen

    iterations = [0, 0, 3, 3, 3, 6]
    assert run_ranks(rank_main, 1) == [[(True, n) for n in iterations]]


def test_local_iterations_may_run_without_the_hook() -> None:
    """``no_sync()`` spares DDP's own work; the gradients of the round's first iteration show what there is."""

    def rank_main(rank: int, skip: bool) -> bytes:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=3)
        for iteration in range(9):
            optimizer.zero_grad()
            if skip and iteration % 3:
                with model.no_sync():
                    loss = models.backward(model, rank, iteration)
            else:
                loss = models.backward(model, rank, iteration)
            optimizer.step()
            state.step(loss)
        state.close()
        return models.parameters_of(model).numpy().tobytes()

    through, beside = (run_ranks(lambda rank, s=skip: rank_main(rank, s)) for skip in (False, True))
    assert len({*through, *beside}) == 1


def test_without_the_hook_it_says_what_to_do() -> None:
    def rank_main(rank: int) -> None:
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=3)
        with pytest.raises(RuntimeError, match=r"rank 0: step\(\) without a backward.*register_comm_hook"):
            state.step(1.0)
        state.close()
        model, _, state = models.new_run(mqgrad.FixedBits(4), period=3)
        with model.no_sync():
            loss = models.backward(model, rank, 0)
        with pytest.raises(RuntimeError, match="the first backward must go through it"):
            state.step(loss)  # replicas would part, each with anchors of its own
        state.close()

    run_ranks(rank_main, 1)


def within_second_round(
    rank: int,
) -> tuple[torch.nn.Sequential, torch.optim.Optimizer, mqgrad.CompressionState]:
    """A model whose first layer is frozen, after five iterations in rounds of four."""
    model = models.small_model()
    model[0].requires_grad_(False)
    state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    models.train(models.compressed_ddp(model, state), optimizer, state, rank, range(5))
    return model, optimizer, state


def test_a_model_that_is_wrapped_anew_within_a_round_is_told_when_to() -> None:
    def rank_main(rank: int) -> None:
        model, _, state = within_second_round(rank)
        model[0].requires_grad_(True)
        wrapped = models.compressed_ddp(model, state)
        with pytest.raises(
            RuntimeError,
            match=f"rank {rank}: no gradient before step 1 .*wrap the model anew .* after finish_round",
        ):
            models.backward(wrapped, rank, 5)

    run_ranks(rank_main)


def test_a_model_may_be_wrapped_anew_where_a_round_has_ended() -> None:
    def rank_main(rank: int) -> bytes:
        model, optimizer, state = within_second_round(rank)
        state.finish_round()
        model[0].requires_grad_(True)
        models.train(models.compressed_ddp(model, state), optimizer, state, rank, range(5, 13))
        state.close()
        return models.parameters_of(model).numpy().tobytes()

    assert len(set(run_ranks(rank_main))) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_lose_nothing_that_they_can_hold(dtype: torch.dtype) -> None:
    """What bfloat16 rounds off must not be taken for a move, or averages would undo small steps."""

    def rank_main(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
        model = models.small_model().to(dtype)
        first = models.parameters_of(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), period=2)
        ddp = models.compressed_ddp(model, state)
        for iteration in range(4):
            optimizer.zero_grad()
            x, y = batch(rank, iteration)
            loss = nn.functional.cross_entropy(ddp(x.to(dtype)), y)
            loss.backward()
            optimizer.step()
            state.step(loss)
        state.close()
        return first, models.parameters_of(model), next(model.parameters()).dtype

    for first, last, kept in run_ranks(rank_main):
        assert kept == dtype
        assert torch.equal(first, last)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period": 0}, "period must be .*not 0"),
        ({"period": 2.0}, r"period must be .*not 2\.0"),
        ({"period": 2, "slow_momentum": 1.0}, r"slow_momentum must be .*not 1\.0"),
        ({"slow_momentum": 0.5}, r"slow_momentum=0\.5, variance_reduced=False need rounds"),
        ({"variance_reduced": True}, r"variance_reduced=True need rounds"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, float], message: str) -> None:
    def rank_main(rank: int) -> None:
        with pytest.raises(ValueError, match=message):
            mqgrad.CompressionState(mqgrad.FixedBits(4), **arguments)

    run_ranks(rank_main, 1)


def test_a_rank_that_dies_between_averages_is_noticed_and_changes_nothing() -> None:
    """In buckets, of which none is applied before all have arrived."""

    def rank_main(rank: int) -> tuple[bool, bool]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=3, timeout_seconds=3)
        models.train(model, optimizer, state, rank, range(5))
        if rank == 1:
            return False, True
        optimizer.zero_grad()
        loss = models.backward(model, rank, 5)
        optimizer.step()
        before = models.parameters_of(model)
        with pytest.raises(RuntimeError):
            state.step(loss)
        with pytest.raises(RuntimeError, match="earlier failure"):  # who goes on is not left to train alone
            state.step(loss)
        return state.replicas_are_equal, torch.equal(before, models.parameters_of(model))

    assert run_ranks(rank_main) == [(False, True)] * 2


def test_a_refused_state_leaves_the_round_as_it_was() -> None:
    def rank_main(rank: int) -> list[bytes]:
        runs = []
        for other in (None, {"rounds": {}}, {"rounds": {"iterations": 0, "anchors": {}}}, {"config": "?"}):
            model, optimizer, state = models.new_run(Scripted([2, 4]), period=4)
            models.train(model, optimizer, state, rank, range(6))
            if other is not None:
                with pytest.raises(ValueError, match="saved"):
                    state.load_state_dict(state.state_dict() | other)
            models.train(model, optimizer, state, rank, range(6, 12))
            state.close()
            runs.append(models.parameters_of(model).numpy().tobytes())
        return runs

    assert len({run for runs in run_ranks(rank_main) for run in runs}) == 1


@pytest.mark.parametrize("argument", [{"variance_reduced": True}, {"slow_momentum": 0.5}, {"period": 3}])
def test_ranks_with_different_rounds_are_told_so(argument: dict[str, Any]) -> None:
    def rank_main(rank: int) -> None:
        arguments = {"period": 2, **(argument if rank == 0 else {})}
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), **arguments)
        with pytest.raises(RuntimeError, match="ranks disagree about the configuration"):
            models.train(model, optimizer, state, rank, range(6))

    run_ranks(rank_main)
