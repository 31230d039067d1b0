"""Stochastic rounding is unbiased, nearest rounding contracts, and both meet their error in theory."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from instruction_sets import KERNELS
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import reference, reference_random

WIDTHS = range(1, 9)
BUCKET = 512

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
normal = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


def roundtrip(x: Tensor, bits: int, stochastic: bool, bucket_size: int = BUCKET, seed: int = 0) -> Tensor:
    return cuda_ext.decode(
        cuda_ext.encode(x, bits, bucket_size, stochastic, seed), x.numel(), bits, bucket_size
    )


def levels(bits: int) -> int:
    return max(1, 2 ** (bits - 1) - 1)


def step(bits: int) -> float:
    """Distance between neighbouring levels, in scales."""
    return 2.0 if bits == 1 else 1 / levels(bits)


def nmse(x: Tensor, decoded: Tensor) -> float:
    return float(((decoded - x).double() ** 2).sum() / (x.double() ** 2).sum())


def gaussian(buckets: int = 400) -> Tensor:
    return torch.randn(buckets * BUCKET, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bits", WIDTHS)
def test_stochastic_rounding_is_unbiased(bits: int) -> None:
    """The mean of K roundings is within 6 of its standard deviations, at most step/2/sqrt(K), of the value."""
    buckets = 4000  # K: the same bucket every time, other random numbers
    x = gaussian(1)
    mean = roundtrip(x.repeat(buckets), bits, True).double().view(buckets, BUCKET).mean(0)
    bound = 6 * step(bits) * float(x.abs().max()) / 2 / math.sqrt(buckets)
    assert float((mean - x).abs().max()) < bound


@given(hnp.arrays("float32", st.integers(1, 50), elements=finite), st.integers(1, 8), st.integers(0, 9))
def test_stochastic_error_is_at_most_a_step(values: np.ndarray, bits: int, seed: int) -> None:
    x = torch.tensor(values)
    error = (roundtrip(x, bits, True, seed=seed).double() - x.double()).abs().max()
    assert (
        float(error) <= step(bits) * float(x.double().abs().max()) * (1 + 1e-5) + 3e-45
    )  # two denormal ulps


@pytest.mark.parametrize("bits", range(3, 9))
def test_stochastic_error_follows_the_law_of_dq_sgd(bits: int) -> None:
    """E‖Q(x) − x‖² = d/(6 s²) ‖x‖∞², for dense x and b ≥ 3."""
    x = gaussian()
    law = float((x.view(-1, BUCKET).abs().amax(1).double() ** 2).sum()) * BUCKET / (6 * levels(bits) ** 2)
    assert float(((roundtrip(x, bits, True) - x).double() ** 2).sum()) == pytest.approx(law, rel=0.03)


@given(hnp.arrays("float32", st.integers(1, 50), elements=normal), st.integers(1, 8), st.integers(1, 60))
def test_nearest_rounding_contracts(values: np.ndarray, bits: int, bucket_size: int) -> None:
    x = torch.tensor(values)
    error = (roundtrip(x, bits, False, bucket_size).double() - x.double()).norm()
    assert error < x.double().norm() or not x.any()


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_lone_element_survives_nearest_rounding(bits: int) -> None:
    x = torch.zeros(BUCKET)
    x[77] = -3.25
    decoded = roundtrip(x, bits, False)
    assert torch.equal(decoded, x) if bits > 1 else nmse(x, decoded) < 1


def gaussian_nmse(top: float, s: int) -> float:
    """Of rounding a standard normal to the nearest of -s..s times top/s, by quadrature."""
    x = np.arange(0.5e-3, 12, 1e-3)
    q = np.minimum(np.floor(x * s / top + 0.5), s) * top / s
    return float(((x - q) ** 2 * np.exp(-x * x / 2)).sum() * 1e-3 * 2 / math.sqrt(2 * math.pi))


def laplace_nmse(top: float, s: int) -> float:
    """The same for Laplace with mean magnitude 1, whose second moment is 2."""
    x = np.arange(0.5e-3, 40, 1e-3)
    q = np.minimum(np.floor(x * s / top + 0.5), s) * top / s
    return float(((x - q) ** 2 * np.exp(-x)).sum() * 1e-3 / 2)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_nearest_error_on_a_gaussian_is_the_theoretical_one(bits: int) -> None:
    top = reference.CLIP[bits] * math.sqrt(math.pi / 2)  # sum x² / sum |x| of a standard normal
    x = gaussian()
    assert nmse(x, roundtrip(x, bits, False)) == pytest.approx(gaussian_nmse(top, levels(bits)), rel=0.03)


def test_four_bits_do_not_clip_what_few_elements_dominate() -> None:
    """Clipped, the large ones would lose most of what the bucket holds."""
    x = gaussian()
    x.view(-1, BUCKET)[:, 7] = 40.0
    torch.testing.assert_close(roundtrip(x, 4, False), (x * 7 / 40).round() * 40 / 7)


def test_one_bit_error_on_a_gaussian_is_the_theoretical_one() -> None:
    x = gaussian()
    assert nmse(x, roundtrip(x, 1, False)) == pytest.approx(1 - 2 / math.pi, rel=0.01)


@pytest.mark.parametrize("bits", range(5, 9))
def test_without_clipping_the_error_is_uniform_over_a_step(bits: int) -> None:
    x = gaussian()
    mean_square = float((x.view(-1, BUCKET).abs().amax(1).double() ** 2).mean()) * step(bits) ** 2 / 12
    assert nmse(x, roundtrip(x, bits, False)) == pytest.approx(mean_square, rel=0.03)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_clipping_constants_are_what_their_derivation_gives(bits: int) -> None:
    """Note [Scale] of rounding.h, and the same table in both implementations."""
    s = levels(bits)
    candidates = np.arange(0.8, 2.8, 0.005)
    weighted_mean = {gaussian_nmse: math.sqrt(math.pi / 2), laplace_nmse: 2.0}
    best = [
        candidates[np.argmin([loss(k * unit, s) for k in candidates])] for loss, unit in weighted_mean.items()
    ]
    assert reference.CLIP[bits] == pytest.approx(max(1.0, math.sqrt(best[0] * best[1])), abs=0.006)
    header = (KERNELS / "rounding.h").read_text()
    factors = re.search(r"bits == 2 \? (.+) : bits == 3 \? (.+) : (.+);", header)
    assert factors is not None
    assert float(factors[bits - 1]) == reference.CLIP[bits]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 3.4e38, 1e-38, 1.4e-45])
def test_constant_buckets_are_exact(bits: int, stochastic: bool, value: float) -> None:
    x = torch.full((700,), value)
    assert torch.equal(roundtrip(x, bits, stochastic), x)
    assert torch.equal(roundtrip(x * torch.tensor([1.0, -1.0]).repeat(350), bits, stochastic).abs(), x.abs())


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [8, 11, 15])
def test_a_non_finite_element_spoils_its_bucket_only(
    bits: int, stochastic: bool, bad: float, where: int
) -> None:
    x = torch.ones(20)
    x[where] = bad
    decoded = roundtrip(x, bits, stochastic, bucket_size=8)
    assert bool(decoded[8:16].isnan().all())
    assert torch.equal(decoded[:8], x[:8])
    assert torch.equal(decoded[16:], x[16:])


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("scale", [1.0, 0.7, 3e38, 1e-30, 1e-38])
def test_the_bias_is_at_most_the_resolution_of_the_dither(bits: int, scale: float) -> None:
    """Note [Stochastic rounding], summed over every value of the dither."""
    x_B1 = (torch.rand(200, 1, generator=torch.Generator().manual_seed(3)) * 2 - 1) * scale
    dither_BL = torch.arange(2**reference_random.DITHER_BITS).expand(200, -1)
    scale_B = torch.full((200,), scale)
    codes_BL = reference._stochastic_codes(x_B1, scale_B, bits, dither_BL)
    mean_B = codes_BL.double().mean(1) * step(bits) - 1
    resolution = 2**-16 * step(bits) + 2**-23
    assert float((mean_B - (x_B1.double() / scale_B.double()[:, None]).squeeze(1)).abs().max()) <= resolution


def test_dithers_are_uniform_and_differ_between_seeds_buckets_and_elements() -> None:
    n = 1 << 18
    ids = torch.arange(n // BUCKET)
    draws = {
        (seed, shift): reference_random.dither(seed, ids + shift, BUCKET).flatten()
        for seed in (0, 1)
        for shift in (0, 1)
    }
    base = draws[0, 0]
    assert 0 <= int(base.min()) < int(base.max()) < 2**reference_random.DITHER_BITS
    for bits in (base >> 7, base & 0xFF):
        # 256 cells: chi-square with 255 degrees of freedom has standard deviation sqrt(510).
        counts = torch.bincount(bits, minlength=256).double()
        assert abs(float(((counts - n / 256) ** 2).sum() / (n / 256)) - 255) < 6 * math.sqrt(510)
    pairs = [draws[1, 0], draws[0, 1], *(base.roll(k) for k in (1, 2, 3, 16, BUCKET))]
    for other in pairs:
        correlation = torch.corrcoef(torch.stack([base, other]).double())[0, 1]
        assert abs(float(correlation)) < 5 / math.sqrt(n)


@pytest.mark.parametrize("vary", ["seed", "bucket"])
def test_roundings_within_a_bucket_are_independent(vary: str) -> None:
    """The number of elements that round up is binomial, also in its variance, which any correlation would change."""
    count, p = 8000, 0.3
    ids, zero = torch.arange(count), torch.zeros(1, dtype=torch.int64)
    if vary == "bucket":
        draws_BL = reference_random.dither(0, ids, BUCKET)
    else:
        draws_BL = torch.cat([reference_random.dither(seed, zero, BUCKET) for seed in range(count)])
    ups_B = (draws_BL < p * 2**reference_random.DITHER_BITS).sum(1).double()
    variance = BUCKET * p * (1 - p)
    assert abs(float(ups_B.mean()) - BUCKET * p) < 6 * math.sqrt(variance / count)
    assert float(ups_B.var()) == pytest.approx(variance, rel=6 * math.sqrt(2 / count))


def test_buckets_may_be_encoded_apart() -> None:
    """What makes sharded encoding equal to encoding the whole: bucket_ids carry the random numbers."""
    x = gaussian(6)
    whole = roundtrip(x, 3, True, seed=9)
    ids = torch.tensor([4, 5])
    part = cuda_ext.encode(x[4 * BUCKET :], 3, BUCKET, True, 9, ids)
    assert torch.equal(cuda_ext.decode(part, 2 * BUCKET, 3, BUCKET), whole[4 * BUCKET :])
    unlabelled = cuda_ext.encode(x[4 * BUCKET :], 3, BUCKET, True, 9)
    assert not torch.equal(part, unlabelled)
