"""The C++ kernels and the torch reference give the same bytes, on any number of threads."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from built import needs_extension
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from same_bits import assert_same
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import reference, reference_minmax

pytestmark = needs_extension

WIDTHS = range(1, 9)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPES = [
    (1, 1),
    (1, 512),
    (7, 3),
    (8, 512),
    (63, 1),
    (511, 512),
    (513, 512),
    (1030, 8),
    (1500, 500),
    (1543, 100),
]
SHAPES += [(1543, 2**62), (1543, 1029)]
SHAPES += [(1030, 64), (6500, 2112)]  # whole buckets of whole blocks: the next one is read ahead


def gradient(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Heavy-tailed, with exact zeros, a constant stretch, ties between levels and, at the end, a NaN."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[numel // 4 : numel // 2] = 0.0
    x[numel // 2 : numel // 2 + numel // 8] = -0.75
    x[::9] = (x[::9] * 8).round() / 8
    if numel > 1000:
        x[-3] = torch.nan
    return x.to(dtype)


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_extension_is_loaded() -> None:
    assert cuda_ext.IMPLEMENTATION == "extension"


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_encode_and_decode(bits: int, stochastic: bool, dtype: torch.dtype) -> None:
    for numel, bucket_size in SHAPES:
        x = gradient(numel, dtype)
        payload = cuda_ext.encode(x, bits, bucket_size, stochastic, 5)
        assert_same(payload, reference.encode(x, bits, bucket_size, stochastic, 5))
        decoded = cuda_ext.decode(payload, numel, bits, bucket_size)
        assert_same(decoded, reference.decode(payload, numel, bits, bucket_size))
        ours, expected = torch.ones(numel), torch.ones(numel)
        cuda_ext.decode_add_(ours, payload, bits, bucket_size)
        reference.decode_add_(expected, payload, bits, bucket_size)
        assert_same(ours, expected)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("stochastic", "dtype"), list(zip([False, True] * 2, DTYPES, strict=True)))
def test_encode_with_feedback(bits: int, stochastic: bool, dtype: torch.dtype) -> None:
    for (numel, bucket_size), (alpha, beta) in zip(SHAPES, itertools.cycle([(1, 1), (0.3, 0.9)])):
        x = gradient(numel, dtype)
        ours, expected = torch.full((numel,), 0.01), torch.full((numel,), 0.01)
        for step in range(3):
            settings, gains = (bits, bucket_size, stochastic, step), {"alpha": alpha, "beta": beta}
            payload = cuda_ext.encode(x, *settings, residual=ours, **gains)
            assert_same(payload, reference.encode(x, *settings, residual=expected, **gains))
            assert_same(ours, expected)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (40, 3), (3, 40), (70, 33), (2, 1200)])
def test_minmax(bits: int, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = gradient(shape[0] * shape[1], dtype).view(shape)
    payload = cuda_ext.encode_minmax(x, bits)
    assert_same(payload, reference_minmax.encode_minmax(x, bits))
    assert_same(
        cuda_ext.decode_minmax(payload, *shape, bits), reference_minmax.decode_minmax(payload, *shape, bits)
    )


@given(
    hnp.arrays("float32", st.integers(1, 40), elements=st.floats(width=32)),
    st.integers(1, 8),
    st.integers(1, 20),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
)
def test_any_floats(values: object, bits: int, bucket_size: int, stochastic: bool, seed: int) -> None:
    x = torch.tensor(values)
    payload = cuda_ext.encode(x, bits, bucket_size, stochastic, seed)
    assert_same(payload, reference.encode(x, bits, bucket_size, stochastic, seed))
    decoded = cuda_ext.decode(payload, len(x), bits, bucket_size)
    assert_same(decoded, reference.decode(payload, len(x), bits, bucket_size))
    minmax = cuda_ext.encode_minmax(x[:, None], bits)
    assert_same(minmax, reference_minmax.encode_minmax(x[:, None], bits))
    assert_same(
        cuda_ext.decode_minmax(minmax, len(x), 1, bits),
        reference_minmax.decode_minmax(minmax, len(x), 1, bits),
    )


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_a_bucket_that_is_not_finite_or_zero_does_not_change_the_next(bits: int, stochastic: bool) -> None:
    x = gradient(1500)
    x[130], x[700], x[1024:1152] = torch.nan, -torch.inf, 0.0
    payload = cuda_ext.encode(x, bits, 128, stochastic, 5)
    assert_same(payload, reference.encode(x, bits, 128, stochastic, 5))


def test_bucket_ids() -> None:
    x = gradient(1000)
    ids = torch.tensor([3, 2**40, -1, 2**32 + 3, 0, 1, 2, 9])
    payload = cuda_ext.encode(x, 4, 128, True, 5, ids)
    assert_same(payload, reference.encode(x, 4, 128, True, 5, ids))


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("bucket_size", [1, 7, 512, 3000, 2**62])
def test_bytes_do_not_depend_on_threads(bucket_size: int) -> None:
    x = gradient(200_003)
    matrix = x[:200_000].view(500, 400)

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        residual = x.nan_to_num().flip(0)
        payload = cuda_ext.encode(x, 3, bucket_size, True, 1, residual=residual)
        plain = cuda_ext.encode(x, 3, bucket_size, True, 1)
        decoded = cuda_ext.decode(payload, len(x), 3, bucket_size)
        minmax = cuda_ext.encode_minmax(matrix, 5)
        return [payload, residual, plain, decoded, minmax, cuda_ext.decode_minmax(minmax, 500, 400, 5)]

    single = run(1)
    for threads in (2, 5):
        for ours, expected in zip(run(threads), single, strict=True):
            assert_same(ours, expected)
