"""The compressed mean all-reduce through the DDP hook, on real ranks."""

import itertools

import averages
import models
import pytest
import torch
from ranks import run_cases, run_ranks

import mqgrad
from mqgrad.cuda_ext import CHECKSUM_BYTES

TOLERANCES = {1: 1.5, 2: 1.0, 4: 0.25, 8: 0.02, 16: 0.006, 32: 1e-6}
"""Each of the two roundings of a contractive code errs by less than the vector; finer ones by far less."""


@pytest.fixture(scope="module", params=[1, 2, 4], ids="world_size={}".format)
def averaged(request: pytest.FixtureRequest) -> dict[tuple, tuple]:
    """Averaged and exact mean gradients without feedback, by width, then by rank."""

    def rank_main(rank: int, bits: int):
        return averages.means(mqgrad.Quantized(error_feedback=False), bits, rank, iterations=3)[0]

    return run_cases(rank_main, [(bits,) for bits in TOLERANCES], request.param)


@pytest.mark.parametrize(("bits", "tolerance"), TOLERANCES.items())
def test_every_rank_ends_with_the_same_bytes_near_the_exact_mean(
    averaged: dict[tuple, tuple], bits: int, tolerance: float
) -> None:
    results = averaged[bits,]
    for iterations in zip(*results, strict=True):
        assert len({got.tobytes() for got, _ in iterations}) == 1
        got, exact = (torch.from_numpy(x) for x in iterations[0])
        assert (got - exact).norm() <= tolerance * exact.norm()
        if len(results) == 1 or bits == 32:
            torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-8)
        else:
            assert not torch.equal(got, exact)


def test_stochastic_mean_is_unbiased_over_iterations() -> None:
    def rank_main(rank: int):
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(3), compressor=mqgrad.QSGD())
        ddp = models.compressed_ddp(model, state)
        total = 0
        for _ in range(200):
            model.zero_grad()
            models.backward(ddp, rank, 0)
            total = total + models.gradient_of(model)
        one = models.gradient_of(model)
        state.close()
        exact = 0
        for other in range(2):
            model.zero_grad()
            models.backward(model, other, 0)
            exact = exact + models.gradient_of(model) / 2
        return (one - exact).norm().item(), (total / 200 - exact).norm().item()

    single_error, mean_error = run_ranks(rank_main)[0]
    # Independent unbiased errors shrink by √200 ≈ 14 in the mean; a bias would stay.
    assert mean_error < single_error / 9


@pytest.mark.parametrize("bits", [2, 32])
def test_many_small_buckets_overlap_without_deadlock(bits: int) -> None:
    def rank_main(rank: int):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(40)])
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits))
        ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.001)
        gradients = []
        for iteration in range(5):
            model.zero_grad()
            x = torch.randn(8, 40, generator=torch.Generator().manual_seed(rank + 10 * iteration))
            ddp(x).square().mean().backward()
            gradients.append(models.gradient_of(model).numpy().tobytes())
        state.close()
        return gradients

    first, second = run_ranks(rank_main)
    assert first == second


def test_non_finite_gradients_reach_every_rank_and_leave_feedback_finite() -> None:
    def rank_main(rank: int, bits: float, bad: float):
        model = torch.nn.Linear(600, 2, bias=False)
        torch.nn.init.constant_(model.weight, 0.1)
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits))
        ddp = models.compressed_ddp(model, state)
        finite = []
        for iteration in range(3):
            model.zero_grad()
            x = torch.randn(4, 600, generator=torch.Generator().manual_seed(rank + 2 * iteration))
            if iteration == 1 and rank == 1:
                x[0, 5] = bad
            ddp(x).sum().backward()
            finite.append(bool(model.weight.grad.isfinite().all()))
        state.close()
        return finite

    cases = list(itertools.product([1 / 4, 2, 8, 16, 32], [float("nan"), float("inf"), float("-inf")]))
    for case, finite in run_cases(rank_main, cases).items():
        assert finite == ([True, False, True],) * 2, case


def test_other_gradient_dtypes() -> None:
    def rank_main(rank: int, dtype: torch.dtype, bits: int):
        model = torch.nn.Linear(64, 8, bias=False).to(dtype)
        torch.nn.init.constant_(model.weight, 0.1)
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits))
        ddp = models.compressed_ddp(model, state)
        x = torch.full((1, 64), float(rank + 1), dtype=dtype)
        ddp(x).sum().backward()
        state.close()
        return str(model.weight.grad.dtype), model.weight.grad.double().unique().tolist()

    cases = list(itertools.product([torch.float16, torch.bfloat16, torch.float64], [4, 16, 32]))
    for (dtype, bits), results in run_cases(rank_main, cases).items():
        # Constant gradients 1 and 2 are exact at every width.
        assert results == ((str(dtype), [1.5]),) * 2, (dtype, bits)


@pytest.mark.parametrize("topology", ["sharded", "all-gather"])
def test_bytes_are_counted_as_sent(topology: str) -> None:
    """With two ranks as many either way, but for what each message begins and ends with."""

    def rank_main(rank: int):
        sent = {}
        for bits in (2, 4, 8, 16, 32):
            model = torch.nn.Linear(512, 64, bias=False)
            state = mqgrad.CompressionState(
                mqgrad.FixedBits(bits), compressor=f"quantized:topology={topology}"
            )
            ddp = models.compressed_ddp(model, state)  # held: its hooks live as long as it does
            ddp(torch.randn(2, 512)).sum().backward()
            state.close()
            sent[bits] = state.totals.wire_bytes
        return sent

    sent = run_ranks(rank_main)[0]
    agreement_bytes = 8 * 8
    n, messages = 512 * 64, 1 if topology == "all-gather" else 2
    for bits in (2, 4, 8):
        seed_bytes = 8 if bits == 2 else 0  # rotated
        codes_and_scales = n * bits // 8 + 4 * n // 512
        assert sent[bits] == codes_and_scales + messages * (seed_bytes + CHECKSUM_BYTES) + agreement_bytes
    assert sent[16] == 2 * n + messages * CHECKSUM_BYTES + agreement_bytes
    assert sent[32] == 4 * n + agreement_bytes


@pytest.mark.parametrize("topology", ["sharded", "all-gather"])
def test_what_an_exchange_leaves_behind_is_for_autograd_as_before(topology: str) -> None:
    """It goes on in inference mode, whose tensors could not be changed in place outside of it."""

    def rank_main(rank: int):
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(2), compressor=mqgrad.Quantized(topology=topology))
        ddp = models.compressed_ddp(model, state)
        state.step(models.backward(ddp, rank, 0))
        gradient, feedback = next(iter(model.parameters())).grad, state.compressor.feedback
        kept = list(feedback.push._values.values())
        for residual in kept:
            residual.mul_(1)
        inference = [tensor.is_inference() for tensor in (gradient, *kept)]
        state.close()
        return len(kept), any(inference)

    for kept, any_inference in run_ranks(rank_main, 3):
        assert (kept > 0, any_inference) == (True, False)
