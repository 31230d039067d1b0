"""The rotated codes: parity with the reference, published errors, bias, and what may go wrong."""

import math

import pytest
import torch
from built import needs_extension
from hypothesis import given
from hypothesis import strategies as st

from mqgrad import cuda_ext
from mqgrad.cuda_ext import reference_rotation

WIDTHS = range(1, 5)
# 1 bit: pi/2 - 1; the others 1/(1 - D) - 1 and D with D the Lloyd-Max distortion of a Gaussian (Max 1960).
UNBIASED_NMSE = {1: math.pi / 2 - 1, 2: 0.13312, 3: 0.035784, 4: 0.0095921}
CONTRACTIVE_NMSE = {1: 0.36338, 2: 0.11748, 3: 0.034548, 4: 0.0095010}


def heavy_tailed(numel: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()


def gaussian(numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1))


def coded(x: torch.Tensor, bits: int, unbiased: bool, seed: int = 0, bucket_size: int = 512) -> torch.Tensor:
    payload = cuda_ext.encode_rotated(x, bits, bucket_size, unbiased, seed)
    return cuda_ext.decode_rotated(payload, x.numel(), bits, bucket_size)


@needs_extension
@given(
    numel=st.integers(0, 700),
    bits=st.sampled_from(WIDTHS),
    bucket_size=st.sampled_from([8, 16, 32, 64, 512, 4096]),
    unbiased=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 1),
    special=st.sampled_from([None, 0.0, math.nan, math.inf, 3e38]),
)
def test_parity_with_the_reference(
    numel: int, bits: int, bucket_size: int, unbiased: bool, seed: int, special: float | None
) -> None:
    x = heavy_tailed(numel, seed=numel)
    if special is not None:
        x[: numel // 2] = special
    payload = cuda_ext.encode_rotated(x, bits, bucket_size, unbiased, seed)
    assert payload.numel() == cuda_ext.rotated_bytes(numel, bits, bucket_size)
    expected = reference_rotation.encode_rotated(x, bits, bucket_size, unbiased, seed)
    assert torch.equal(payload, expected)
    decoded = cuda_ext.decode_rotated(payload, numel, bits, bucket_size)
    torch.testing.assert_close(
        decoded,
        reference_rotation.decode_rotated(payload, numel, bits, bucket_size),
        rtol=0,
        atol=0,
        equal_nan=True,
    )
    accumulator = torch.ones(numel)
    cuda_ext.decode_rotated_add_(accumulator, payload, bits, bucket_size)
    torch.testing.assert_close(accumulator, 1 + decoded, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("unbiased", [False, True])
def test_error_is_the_published_one_whatever_the_data(bits: int, unbiased: bool) -> None:
    """Within 10 % for Gaussians, no worse for heavy tails, and none for a single element that is not zero."""
    one_hot = torch.zeros(512 * 100)
    one_hot[::512] = 1.0
    expected = (UNBIASED_NMSE if unbiased else CONTRACTIVE_NMSE)[bits]
    errors = {}
    for name, x in {"gaussian": gaussian(512 * 200), "heavy": heavy_tailed(512 * 200)}.items():
        errors[name] = float((coded(x, bits, unbiased) - x).square().sum() / x.square().sum())
    assert errors["gaussian"] == pytest.approx(expected, rel=0.1)
    assert errors["heavy"] < 1.1 * expected
    # A single spike becomes ±1/√L everywhere, which one codeword represents exactly.
    torch.testing.assert_close(coded(one_hot, bits, unbiased), one_hot, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", WIDTHS)
def test_unbiased_form_is_unbiased_over_seeds(bits: int) -> None:
    x = gaussian(512)
    draws = torch.stack([coded(x, bits, True, seed) for seed in range(400)])
    error_of_mean = (draws.mean(0) - x).square().sum()
    expected = UNBIASED_NMSE[bits] * x.square().sum() / 400
    assert float(error_of_mean / expected) == pytest.approx(1.0, abs=0.35)
    contractive = torch.stack([coded(x, bits, False, seed) for seed in range(400)])
    shrinkage = float(contractive.mean(0) @ x / (x @ x))
    assert shrinkage == pytest.approx(1 - CONTRACTIVE_NMSE[bits], rel=0.05)


@pytest.mark.parametrize("bits", WIDTHS)
def test_contractive_form_never_errs_by_more_than_the_vector(bits: int) -> None:
    for seed in range(50):
        x = heavy_tailed(64, seed)
        assert (coded(x, bits, False, seed, bucket_size=64) - x).norm() < x.norm()


def test_a_bucket_that_is_not_finite_decodes_to_nan_and_leaves_the_others() -> None:
    x = heavy_tailed(512 * 3)
    x[600] = math.inf
    decoded = coded(x, 3, True)
    assert decoded[512:1024].isnan().all()
    assert decoded[:512].isfinite().all()
    assert decoded[1024:].isfinite().all()
    assert torch.equal(coded(torch.zeros(1000), 2, False), torch.zeros(1000))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("bucket_size", [2**k for k in range(3, 17)])
@pytest.mark.parametrize("code_bytes", [0x00, 0xFF], ids=["smallest", "largest"])
def test_the_farthest_codewords_are_rotated_back_exactly(
    bits: int, bucket_size: int, code_bytes: int
) -> None:
    """A vector of one word is n times that word in the first place, the largest integer that there is."""
    payload = cuda_ext.encode_rotated(torch.ones(bucket_size), bits, bucket_size, True, 5)
    scale, codes = payload[8:12].view(torch.float32), payload[12:]
    scale.fill_(0.5)
    codes.fill_(code_bytes)
    decoded = cuda_ext.decode_rotated(payload, bucket_size, bits, bucket_size)
    word = reference_rotation.CODEBOOK[bits][-1]
    assert float(decoded[0].abs()) == bucket_size * word / 2
    assert not decoded[1:].any()


@pytest.mark.parametrize("bits", WIDTHS)
def test_what_is_too_small_to_divide_by_is_kept(bits: int) -> None:
    x, residual = torch.full((1000,), 1e-41), torch.zeros(1000)
    payload = cuda_ext.encode_rotated(x, bits, 64, True, 0, residual=residual)
    assert torch.equal(cuda_ext.decode_rotated(payload, 1000, bits, 64), torch.zeros(1000))
    assert torch.equal(residual, x)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("exponent", [-34, -20, 20, 34])
def test_the_error_does_not_depend_on_the_unit(bits: int, exponent: int) -> None:
    x = gaussian(512 * 20)
    scaled = coded(x * 10.0**exponent, bits, True).double() / 10.0**exponent
    torch.testing.assert_close(scaled, coded(x, bits, True).double(), rtol=1e-4, atol=1e-6)


def test_same_bytes_on_any_number_of_threads() -> None:
    x, threads = heavy_tailed(300_000), torch.get_num_threads()
    try:
        payloads = []
        for count in (1, 2):
            torch.set_num_threads(count)
            payloads.append(cuda_ext.encode_rotated(x, 3, 512, False, 5))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*payloads)


@needs_extension
def test_opcheck() -> None:
    x = heavy_tailed(700)
    payload = cuda_ext.encode_rotated(x, 2, 64, True, 1)
    torch.library.opcheck(torch.ops.mqgrad.decode_rotated.default, (payload, 700, 2, 64))
    torch.library.opcheck(torch.ops.mqgrad.decode_rotated_add_.default, (x.clone(), payload, 2, 64))


def test_mistakes_are_named() -> None:
    x = torch.zeros(100)
    with pytest.raises(ValueError, match=r"bits must be in 1..4, got 5"):
        cuda_ext.encode_rotated(x, 5, 64, False, 0)
    with pytest.raises(ValueError, match=r"power of two in 8..65536, got 100"):
        cuda_ext.encode_rotated(x, 2, 100, False, 0)
