"""1-bit Adam against its formulas, on two real ranks."""

import copy
import warnings
from typing import NamedTuple

import models
import numpy as np
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.compressors.onebit_adam import OneBitAdam

WIDTH, WARMUP = 1200, 5
BETA1, BETA2, EPS = 0.9, 0.99, 1e-8
SPEC = f"onebit-adam:warmup_iterations={WARMUP},beta2={BETA2}"


def gradients(iteration: int) -> list[torch.Tensor]:
    """Of two ranks, alike in their larger part; the last 100 elements are 0."""
    made = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(7 + rank)) for rank in range(2)]
    shared = torch.randn(WIDTH, generator=torch.Generator().manual_seed(100 + iteration)).exp()
    for gradient in made:
        gradient += 2 * shared
        gradient[-100:] = 0.0
    return made


class Seen(NamedTuple):
    """By one rank, in one iteration."""

    direction: np.ndarray
    residual: np.ndarray | None
    """None where nothing is owed."""
    moments: tuple[np.ndarray, np.ndarray]
    wire_bytes: int


def seen(
    spec: str, iterations: int, bad: dict | None = None, dtype: torch.dtype = torch.float32
) -> list[list[Seen]]:
    """What ranks do when rank r's gradient of iteration i is ``gradients(i)[r]``, by rank."""

    def rank_main(rank: int) -> list[Seen]:
        model = torch.nn.Linear(WIDTH, 1, bias=False, dtype=dtype)
        state = mqgrad.CompressionState(mqgrad.FixedBits(1, interval=1000), compressor=spec)
        ddp = models.compressed_ddp(model, state)
        results, sent = [], 0
        for iteration in range(iterations):
            model.zero_grad()
            x = gradients(iteration)[rank]
            x[7] = (bad or {}).get((iteration, rank), x[7])
            loss = ddp(x[None].to(dtype)).sum()
            loss.backward()
            state.step(0.0)
            owed = state.compressor.coder.feedback.state_dict()["push_feedback"].get(0)
            residual = None if owed is None else owed.numpy().copy()
            total, compressor = state.totals.wire_bytes, state.compressor
            memories = (compressor.momentum, compressor.second_moment)
            first, second = (memory.state_dict()[0].numpy() for memory in memories)
            direction = model.weight.grad[0].float().numpy()
            results.append(Seen(direction, residual, (first, second), total - sent))
            sent = total
        state.close()
        return results

    return run_ranks(rank_main)


def test_until_its_warm_up_ends_it_is_pytorchs_adam() -> None:
    weight = torch.nn.Parameter(torch.zeros(WIDTH))
    adam = torch.optim.Adam([weight], lr=1.0, betas=(BETA1, BETA2), eps=EPS)
    moved = torch.zeros(WIDTH)
    for iteration, here in enumerate(seen(SPEC, WARMUP)[0]):
        weight.grad = torch.stack(gradients(iteration)).mean(0)
        adam.step()
        moved -= torch.from_numpy(here.direction)
        torch.testing.assert_close(moved, weight.detach(), rtol=1e-4, atol=1e-5)
        assert here.residual is None
        assert 4 * WIDTH <= here.wire_bytes < 4.5 * WIDTH


@pytest.fixture(scope="module")
def ranks() -> list[list[Seen]]:
    return seen(SPEC, 14)


def test_then_it_sends_one_bit_an_element_of_momenta_and_owes_the_rest(ranks: list[list[Seen]]) -> None:
    """Σ (mₜ − mean of β1·mₜ₋₁ + (1 − β1)·g) is what all owe, negated: that is error feedback."""
    means = [torch.stack(gradients(iteration)).mean(0).double() for iteration in range(14)]
    m = v = torch.zeros(WIDTH, dtype=torch.float64)
    for mean in means[:WARMUP]:
        m, v = BETA1 * m + (1 - BETA1) * mean, BETA2 * v + (1 - BETA2) * mean.square()
    v = v.clamp(min=1e-3 * v.mean())
    root = (v / (1 - BETA2**WARMUP)).sqrt() + EPS
    difference = torch.zeros(WIDTH, dtype=torch.float64)
    for iteration in range(WARMUP, 14):
        first, second = (rank[iteration] for rank in ranks)
        assert np.array_equal(first.direction, second.direction)
        decoded = torch.from_numpy(first.direction) * root * (1 - BETA1 ** (iteration + 1))
        difference += decoded - (BETA1 * m + (1 - BETA1) * means[iteration])
        m = decoded
        owed = np.mean([first.residual, second.residual], axis=0)
        torch.testing.assert_close(-difference, torch.from_numpy(owed).double(), rtol=1e-3, atol=1e-4)
        assert float(difference.norm() / m.norm()) > 0.1
    assert ranks[0][-1].wire_bytes < 4 * WIDTH / 16


def test_elements_without_a_gradient_in_the_warm_up_stay_without_a_floor() -> None:
    for iteration, here in enumerate(seen(f"{SPEC},floor=0", 8)[0]):
        assert np.all(here.direction[-100:] == 0.0), iteration
        assert np.isfinite(here.direction).all()


@pytest.mark.parametrize("iteration", [0, 2, WARMUP - 1, WARMUP, WARMUP + 2])
def test_an_overflow_is_seen_by_all_and_leaves_the_moments_as_they_were(iteration: int) -> None:
    for rank in seen(SPEC, 10, bad={(iteration, 1): float("inf")}):
        finite = [bool(np.isfinite(here.direction).all()) for here in rank]
        assert finite == [index != iteration for index in range(10)]
        before = rank[iteration - 1].moments if iteration else [np.zeros(WIDTH)] * 2
        assert all(map(np.array_equal, before, rank[iteration].moments))
        root = np.sqrt(1e-3 * rank[-1].moments[1].mean() / (1 - BETA2**WARMUP))
        of_none = rank[-1].moments[0][-100:] / root / (1 - BETA1**10)
        np.testing.assert_allclose(rank[-1].direction[-100:], of_none, rtol=0.01)
        assert np.abs(of_none).min() > 0  # the code's noise, held in bounds by the floor


def test_what_half_precision_cannot_hold_of_a_direction_is_not_remembered() -> None:
    small = {(iteration, rank): 1e-6 for iteration in range(10) for rank in range(2)}
    for rank in seen(f"{SPEC},floor=0", 8, bad=small, dtype=torch.float16):
        finite = [bool(np.isfinite(here.direction).all()) for here in rank]
        assert finite == [True] * WARMUP + [False] * 3
        assert all(map(np.array_equal, rank[WARMUP - 1].moments, rank[-1].moments))


def test_a_state_that_is_loaded_brings_its_own_second_moment() -> None:
    """Also where another one has been divided by."""

    def rank_main(rank: int) -> tuple[list[bytes], list[bytes]]:
        start = lambda: models.new_run(mqgrad.FixedBits(1), compressor="onebit-adam:warmup_iterations=3")  # noqa: E731
        model, optimizer, state = start()
        models.train(model, optimizer, state, rank, range(100, 104))
        saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), state.state_dict()
        straight = models.train(model, optimizer, state, rank, range(104, 107))
        state.close()
        model, optimizer, state = start()
        models.train(model, optimizer, state, rank, range(6))
        for part, part_saved in zip((model, optimizer, state), saved, strict=True):
            part.load_state_dict(part_saved)
        resumed = models.train(model, optimizer, state, rank, range(104, 107))
        state.close()
        return straight, resumed

    assert all(straight == resumed for straight, resumed in run_ranks(rank_main))


def test_a_parameter_without_a_gradient_in_the_warm_up_is_told_of() -> None:
    """And stays as it is."""

    def rank_main(rank: int) -> tuple[str, bool]:
        model = models.small_model()
        model[0][0].weight.register_hook(torch.zeros_like)
        state = mqgrad.CompressionState(mqgrad.FixedBits(1), compressor=SPEC)
        ddp = models.compressed_ddp(model, state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for iteration in range(WARMUP + 2):
                model.zero_grad()
                state.step(models.backward(ddp, rank, iteration))
            state.close()
        told = "".join(str(each.message) for each in caught)
        return told, bool(model[0][0].weight.grad.any())

    for told, moves in run_ranks(rank_main):
        assert told.count("had no gradient in the warm-up of onebit-adam") == 1
        assert not moves


def test_parameters_that_come_later_are_refused() -> None:
    def rank_main(rank: int) -> str:
        model, state = models.small_model(), mqgrad.CompressionState(mqgrad.FixedBits(1), compressor=SPEC)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[0].requires_grad_(False)
        models.train(models.compressed_ddp(model, state), optimizer, state, rank, range(3))
        model[0].requires_grad_(True)
        with pytest.raises(RuntimeError) as raised:
            models.train(models.compressed_ddp(model, state), optimizer, state, rank, range(3, 5))
        with pytest.warns(RuntimeWarning, match="had failed"):
            state.close()
        return str(raised.value)

    for told in run_ranks(rank_main):
        assert "comes in iteration 3, and onebit-adam has no second moment of it" in told


def test_rounds_are_refused() -> None:
    def rank_main(rank: int) -> str:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(1), compressor=SPEC, period=2)
        with pytest.raises(RuntimeError) as raised:
            models.train(model, optimizer, state, rank, range(2))
        with pytest.warns(RuntimeWarning, match="had failed"):
            state.close()
        return str(raised.value)

    for told in run_ranks(rank_main):
        assert "leave out period and period_rule" in told


@pytest.mark.parametrize("argument", ["warmup_iterations=0", "beta1=1", "beta2=-0.1", "eps=-1", "floor=nan"])
def test_wrong_settings_are_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=argument.partition("=")[0]):
        mqgrad.make_compressor(f"onebit-adam:{argument}")


def test_its_width_is_one_bit() -> None:
    assert OneBitAdam().widths == (1,)


def test_a_state_is_not_saved_between_a_backward_and_its_step_in_the_warm_up_either() -> None:
    """Nothing is owed there, but the moments have the gradient already."""

    def rank_main(rank: int) -> None:
        model = torch.nn.Linear(WIDTH, 1, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(1), compressor=SPEC)
        ddp = models.compressed_ddp(model, state)
        ddp(gradients(0)[rank][None]).sum().backward()
        with pytest.raises(RuntimeError, match=r"state_dict\(\) between a backward"):
            state.state_dict()
        state.step(0.0)
        state.state_dict()
        state.close()

    run_ranks(rank_main)
