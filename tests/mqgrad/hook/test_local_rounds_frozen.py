"""What is frozen for a while, in rounds: neither moved nor sent, and averaged wherever it was trained."""

import copy

import models
import pytest
import torch
from ranks import run_ranks
from rounds import PERIOD, Step, assert_as_by_hand, by_hand, in_rounds, raw, step
from torch import nn

import mqgrad


def test_what_is_frozen_is_neither_moved_nor_sent_any_more() -> None:
    """Residuals went on moving it, and its bytes were sent."""

    def rank_main(rank: int) -> tuple[bytes, bytes, float, float]:
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=2, variance_reduced=True)

        def train(rounds: int) -> float:
            ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02)
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
            before = state.totals.wire_bytes
            models.train(ddp, optimizer, state, rank, range(2 * rounds))
            state.drain()
            return (state.totals.wire_bytes - before) / rounds

        all_bytes = train(4)
        model[0].requires_grad_(False)
        frozen = models.parameters_of(model[0]).numpy().tobytes()
        some_bytes = train(4)
        state.close()
        return frozen, models.parameters_of(model[0]).numpy().tobytes(), all_bytes, some_bytes

    for before, after, all_bytes, some_bytes in run_ranks(rank_main):
        assert after == before
        assert some_bytes < 0.8 * all_bytes


@pytest.mark.parametrize("bits", [4, 32])
def test_what_is_frozen_where_a_round_ends_has_been_trained_in_it(bits: float) -> None:
    """As a discriminator while its generator steps: nothing was averaged, without a word."""

    def rank_main(rank: int) -> bytes:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(bits), period=2)
        for iteration in range(6):
            optimizer.zero_grad()
            loss = models.backward(model, rank, iteration)
            optimizer.step()
            model.requires_grad_(False)
            state.step(loss)
            model.requires_grad_(True)
        state.close()
        return models.parameters_of(model).numpy().tobytes()

    assert len(set(run_ranks(rank_main))) == 1


@pytest.mark.parametrize("layer", [0, 1])
def test_what_is_frozen_stays_though_ddp_goes_on_bringing_it(layer: int) -> None:
    """As with ``find_unused_parameters``, where nobody wraps the model anew: alone in a bucket, or beside others."""

    def rank_main(rank: int) -> tuple[bytes, bytes, bytes]:
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=2, variance_reduced=True)
        ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        models.train(ddp, optimizer, state, rank, range(8))
        model[layer].requires_grad_(False)
        frozen = models.parameters_of(model[layer]).numpy().tobytes()
        models.train(ddp, optimizer, state, rank, range(8, 16))
        state.close()
        return frozen, models.parameters_of(model[layer]).numpy().tobytes(), raw(model)

    results = run_ranks(rank_main)
    assert all(before == after for before, after, _ in results)
    assert results[0][2] == results[1][2]


def in_phases(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int) -> torch.Tensor:
    """All of it in the first round; then one layer in a round's middle iteration, the other in the two around it."""
    for layer in (0, 1):
        is_trained = iteration < PERIOD or layer == iteration % PERIOD % 2
        getattr(model, "module", model)[layer].requires_grad_(is_trained)
    return step(model, optimizer, rank, iteration)


def toggled(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int) -> torch.Tensor:
    """One layer after the other in each iteration, as of a discriminator and a generator."""
    inner = getattr(model, "module", model)
    for layer in (0, 1):
        inner[layer].requires_grad_(True)
        inner[1 - layer].requires_grad_(False)
        loss = step(model, optimizer, rank, iteration)
    return loss


def unfrozen_late(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int
) -> torch.Tensor:
    """A layer that is frozen from the start on, until within the second round."""
    getattr(model, "module", model)[0].requires_grad_(iteration > PERIOD)
    return step(model, optimizer, rank, iteration)


@pytest.mark.parametrize(
    ("take_step", "local"),
    [(in_phases, False), (in_phases, True), (toggled, False), (unfrozen_late, False), (unfrozen_late, True)],
)
@pytest.mark.parametrize("bits", [4, 32])
def test_what_is_trained_for_a_part_of_a_round_is_averaged(take_step: Step, local: bool, bits: float) -> None:
    """Whatever is frozen where a round begins and ends, and whether buckets come through the hook or not."""

    def rank_main(rank: int) -> bytes:
        make = models.small_model
        model = in_rounds(make(), rank, take_step, bits=bits, local=local, find_unused_parameters=True)
        if bits == 32:
            assert_as_by_hand(model, by_hand(make, take_step))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1


def test_what_moves_though_it_is_frozen_whenever_it_is_looked_at_is_named() -> None:
    """Under ``no_sync()`` nothing comes through the hook."""

    def rank_main(rank: int) -> None:
        with pytest.raises(
            RuntimeError,
            match=rf"rank {rank}: parameters of shapes .* moved in a round that does not train them",
        ):
            in_rounds(models.small_model(), rank, toggled, local=True, find_unused_parameters=True)

    run_ranks(rank_main)


@pytest.mark.parametrize("layer", [0, 1])
def test_what_is_frozen_stays_where_a_run_is_resumed_within_a_round(layer: int) -> None:
    def rank_main(rank: int) -> tuple[bytes, bytes, bytes, bytes]:
        def start() -> tuple[
            torch.nn.Module, mqgrad.CompressionState, torch.nn.Module, torch.optim.Optimizer
        ]:
            model = models.small_model()
            state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=2, variance_reduced=True)
            ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02, find_unused_parameters=True)
            return model, state, ddp, torch.optim.SGD(model.parameters(), lr=0.1)

        model, state, ddp, optimizer = start()
        models.train(ddp, optimizer, state, rank, range(8))
        model[layer].requires_grad_(False)
        frozen = models.parameters_of(model[layer]).numpy().tobytes()
        models.train(ddp, optimizer, state, rank, range(8, 17))
        saved, weights = state.state_dict(), copy.deepcopy(model.state_dict())
        models.train(ddp, optimizer, state, rank, range(17, 20))
        state.close()
        straight = raw(model)
        model, state, ddp, optimizer = start()
        model[layer].requires_grad_(False)
        model.load_state_dict(weights)
        state.load_state_dict(saved)
        models.train(ddp, optimizer, state, rank, range(17, 20))
        state.close()
        return frozen, models.parameters_of(model[layer]).numpy().tobytes(), straight, raw(model)

    for before, after, straight, resumed in run_ranks(rank_main):
        assert before == after
        assert straight == resumed


@pytest.mark.parametrize("layer", [0, 1])
def test_what_is_unfrozen_within_a_round_is_averaged(layer: int) -> None:
    """Its ranks step apart from then on: left out of the average, replicas would part for good."""

    def rank_main(rank: int) -> tuple[bytes, bytes]:
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=4)
        ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        models.train(ddp, optimizer, state, rank, range(8))
        model[layer].requires_grad_(False)
        models.train(ddp, optimizer, state, rank, range(8, 14))
        frozen = models.parameters_of(model[layer]).numpy().tobytes()
        model[layer].requires_grad_(True)
        models.train(ddp, optimizer, state, rank, range(14, 16))
        state.close()
        return frozen, raw(model)

    (before, first), (_, second) = run_ranks(rank_main)
    assert first == second
    assert before not in first


@pytest.mark.parametrize("controller", ["l-greco", "smoothness-layers"])
def test_widths_by_parameter_go_on_where_some_are_frozen(controller: str) -> None:
    """A round leaves whole buckets of theirs alone; a width for them is decided all the same."""

    def rank_main(rank: int) -> tuple[bytes, int]:
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.make_controller(f"{controller}:interval=2"), period=2)
        ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02, find_unused_parameters=True)
        model[0].requires_grad_(False)
        models.train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), state, rank, range(16))
        state.drain()
        decided = len(state.parameter_bits or [])
        state.close()
        return raw(model), decided

    (first, decided), (second, _) = run_ranks(rank_main)
    assert first == second
    assert decided in (0, 8)


@pytest.mark.parametrize("bits", [1, 32])
@pytest.mark.parametrize("layer", [0, 1])
def test_what_one_rank_alone_freezes_is_averaged_on_all(layer: int, bits: float) -> None:
    """It kept its own value there, and replicas parted without a word; or it left out a bucket that others sent."""

    def rank_main(rank: int) -> tuple[bytes, bytes, bytes]:
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits), period=2, timeout_seconds=20)
        ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        models.train(ddp, optimizer, state, rank, range(4))
        before = models.parameters_of(model[layer]).numpy().tobytes()
        model[layer].requires_grad_(rank == 1)
        models.train(ddp, optimizer, state, rank, range(4, 8))
        state.close()
        return before, models.parameters_of(model[layer]).numpy().tobytes(), raw(model)

    (before, after, first), (_, _, second) = run_ranks(rank_main)
    assert first == second
    assert before != after
