"""TernGrad: shared scales, exact sums, no bias."""

import averages
import models
import pytest
import torch
from ranks import run_ranks
from torch import nn

import mqgrad


@pytest.mark.parametrize(("world_size", "topology"), [(2, "sharded"), (4, "sharded"), (4, "star")])
def test_the_mean_is_a_whole_number_of_shared_scales(world_size: int, topology: str) -> None:
    """The sum of W ternary codes is sent back without loss."""

    def rank_main(rank: int):
        model = nn.Linear(50, 30)
        state = mqgrad.CompressionState(mqgrad.FixedBits(2), compressor=f"terngrad:topology={topology}")
        ddp = models.compressed_ddp(model, state)
        weights = [torch.randn(30, 50, generator=torch.Generator().manual_seed(r)) for r in range(world_size)]
        biases = weights[rank].sum(1)  # so that the two parameters have unlike scales
        ((ddp.module.weight * weights[rank]).sum() + (ddp(torch.zeros(1, 50)) * biases).sum()).backward()
        state.close()
        scale = max(min(float(w.abs().max()), 2.5 * float(w.square().mean().sqrt())) for w in weights)
        codes = model.weight.grad / scale * world_size
        torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-4)
        return codes.round().unique().tolist()

    for codes in run_ranks(rank_main, world_size):
        assert set(codes) <= set(range(-world_size, world_size + 1))
        assert len(codes) > 3


def test_without_clipping_the_mean_is_unbiased() -> None:
    def rank_main(rank: int):
        model = models.small_model(layers=1)
        state = mqgrad.CompressionState(mqgrad.FixedBits(2), compressor="terngrad:clip=0")
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
        return float((one - exact).norm()), float((total / 200 - exact).norm())

    single_error, mean_error = run_ranks(rank_main)[0]
    # Independent unbiased errors shrink by √200 ≈ 14 in the mean; a bias would stay.
    assert mean_error < single_error / 9


@pytest.mark.parametrize(("world_size", "sum_bits"), [(2, 3), (4, 4)])
def test_bytes_are_those_of_codes_sums_and_scales(world_size: int, sum_bits: int) -> None:
    def rank_main(rank: int):
        return averages.means("terngrad", 2, rank, model=nn.Linear(64, 4))[1].totals.wire_bytes

    numel = 64 * 4 + 4
    shard = -(-numel // (8 * world_size))  # bytes of one bit an element
    others = world_size - 1
    scales = 2 * others / world_size * 4 * 2
    expected = others * averages.AGREEMENT_BYTES + scales + others * shard * (2 + sum_bits)
    assert run_ranks(rank_main, world_size) == [expected] * world_size


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_overflow_reaches_every_rank(bad: float) -> None:
    def rank_main(rank: int):
        model = nn.Linear(20, 6, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(2), compressor="terngrad")
        ddp = models.compressed_ddp(model, state)
        scale = torch.ones(6)
        if rank == 1:
            scale[3] = bad
        (ddp(torch.randn(2, 20)) * scale).sum().backward()
        state.close()
        return bool(model.weight.grad.isfinite().any())

    assert run_ranks(rank_main) == [False, False]


def test_a_gradient_of_zeros_stays_zero() -> None:
    def rank_main(rank: int):
        return averages.means("terngrad", 2, rank, model=ZeroedLinear(64, 4))[0][0][0]

    for got in run_ranks(rank_main):
        assert not got[: 64 * 4].any()


class ZeroedLinear(nn.Linear):
    """Whose weight has a gradient of zeros."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(0 * x)
