"""The CUDA kernels, compiled for the CPU and run thread by thread, give the bytes of the CPU kernels.

This holds for machines without a GPU: it shows that the indexing, the packing, the reductions, the barriers and the
randomness of the kernels are right, not that the arithmetic, memory and scheduling of a GPU are. test_cuda.py does
that.
"""

import ctypes
import itertools
from concurrent.futures import Future

import pytest
import torch
from emulated_cuda import guarded, run
from same_bits import assert_same
from torch import Tensor

from mqgrad import cuda_ext

WIDTHS = range(1, 9)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# One warp a bucket, whole and cut short; several warps; a block of 16; too large for one; not a multiple of 32.
SHAPES = [
    (1, 512),
    (1300, 512),
    (700, 2**62),
    (777, 96),
    (5000, 2048),
    (8200, 8192),
    (9000, 2**62),
    (1543, 100),
]
SHAPES += [(130, 1), (20_000, 16_384)]


@pytest.fixture(scope="module")
def kernels(emulated: dict[str, Future[ctypes.CDLL]]) -> ctypes.CDLL:
    return emulated["emulated_kernels"].result()


def gradient(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Heavy-tailed, with zeros, a constant stretch, ties between levels and an infinity near the end."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[numel // 4 : numel // 2] = 0.0
    x[numel // 2 : numel // 2 + numel // 8] = -0.75
    x[::9] = (x[::9] * 8).round() / 8
    if numel > 1000:
        x[-3] = torch.inf
    return x.to(dtype)


def encode(
    kernels: ctypes.CDLL,
    x: Tensor,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bucket_ids: Tensor | None = None,
) -> Tensor:
    settings = (x.numel(), bits, bucket_size, stochastic, seed, bucket_ids)
    with guarded(cuda_ext.payload_bytes(x.numel(), bits, bucket_size), torch.uint8) as payload:
        run(kernels.emulated_encode, x, x.dtype, *settings, residual, alpha, beta, payload)
    return payload


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_encode(kernels: ctypes.CDLL, bits: int, stochastic: bool) -> None:
    for (numel, bucket_size), dtype in zip(SHAPES, itertools.cycle(DTYPES)):
        x = gradient(numel, dtype)
        ours = encode(kernels, x, bits, bucket_size, stochastic, 5)
        assert_same(ours, cuda_ext.encode(x, bits, bucket_size, stochastic, 5))


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_encode_with_feedback(kernels: ctypes.CDLL, bits: int, stochastic: bool) -> None:
    coefficients = itertools.cycle([(1.0, 1.0), (0.3, 0.9)])
    for (numel, bucket_size), (alpha, beta) in zip(SHAPES, coefficients, strict=False):
        x = gradient(numel + 1)[1:]  # not aligned for vector loads
        ours, expected = torch.full((numel,), 0.01), torch.full((numel,), 0.01)
        payload = encode(kernels, x, bits, bucket_size, stochastic, 2**63 + 1, ours, alpha, beta)
        assert_same(
            payload,
            cuda_ext.encode(
                x, bits, bucket_size, stochastic, 2**63 + 1, residual=expected, alpha=alpha, beta=beta
            ),
        )
        assert_same(ours, expected)


def test_bucket_ids(kernels: ctypes.CDLL) -> None:
    for bucket_size in (128, 125):
        x, ids = gradient(1000), torch.tensor([3, 2**40, -1, 2**32 + 3, 0, 1, 2, 9])
        ours = encode(kernels, x, 4, bucket_size, True, 5, bucket_ids=ids)
        assert_same(ours, cuda_ext.encode(x, 4, bucket_size, True, 5, ids))


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_reduce_encode(kernels: ctypes.CDLL, bits: int, stochastic: bool) -> None:
    for (numel, bucket_size), has_residual in zip(SHAPES, itertools.cycle([True, False]), strict=False):
        shards = [gradient(numel), gradient(numel).flip(0), torch.linspace(-1, 1, numel)]
        payloads = torch.stack([cuda_ext.encode(x, bits, bucket_size, False, 0) for x in shards])
        ours, expected = torch.full((numel,), 0.01), torch.full((numel,), 0.01)
        settings = (bits, bucket_size, stochastic, 9)
        with guarded(payloads.shape[1], torch.uint8) as coded:
            residual = ours if has_residual else None
            run(kernels.emulated_reduce_encode, payloads, 3, numel, *settings, residual, 0.5, 1.0, coded)
        residual = expected if has_residual else None
        reduced = cuda_ext.reduce_encode(payloads, numel, *settings, residual=residual, alpha=0.5, beta=1.0)
        assert_same(coded, reduced)
        assert_same(ours, expected)


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("bits", WIDTHS)
def test_decode_any_bytes_at_any_address(kernels: ctypes.CDLL, bits: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    for numel, bucket_size in SHAPES:
        size = cuda_ext.payload_bytes(numel, bits, bucket_size)
        payload = torch.randint(0, 256, (size + shift,), generator=generator, dtype=torch.uint8)[shift:]
        expected = cuda_ext.decode(payload, numel, bits, bucket_size)
        with guarded(numel, shift=shift) as ours:
            run(kernels.emulated_decode, payload, numel, bits, bucket_size, False, ours)
            assert_same(ours, expected)
            run(kernels.emulated_decode, payload, numel, bits, bucket_size, True, ours)
            assert_same(ours, expected + expected)


@pytest.mark.parametrize("bits", WIDTHS)
def test_decode_mean_of_any_bytes(kernels: ctypes.CDLL, bits: int) -> None:
    """Rows of an odd number of bytes are not aligned to one another."""
    generator = torch.Generator().manual_seed(bits)
    for (numel, bucket_size), world_size in zip(SHAPES, itertools.cycle([1, 2, 5]), strict=False):
        size = cuda_ext.payload_bytes(numel, bits, bucket_size)
        payloads = torch.randint(0, 256, (world_size, size), generator=generator, dtype=torch.uint8)
        expected = torch.empty(numel)
        cuda_ext.decode_mean_into(expected, payloads, bits, bucket_size)
        with guarded(numel, shift=world_size) as ours:
            run(kernels.emulated_decode_mean, payloads, world_size, numel, bits, bucket_size, ours)
            assert_same(ours, expected)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("shape", [(1, 1), (40, 3), (3, 40), (70, 33), (2, 1200)])
def test_minmax(kernels: ctypes.CDLL, bits: int, shape: tuple[int, int]) -> None:
    for dtype in DTYPES:
        x = gradient(shape[0] * shape[1], dtype).view(shape)
        expected = cuda_ext.encode_minmax(x, bits)
        with guarded(len(expected), torch.uint8) as payload:
            run(kernels.emulated_encode_minmax, x, dtype, *shape, bits, payload)
        assert_same(payload, expected)
        with guarded(x.numel()) as values:
            run(kernels.emulated_decode_minmax, payload, *shape, bits, values)
        assert_same(values.view(shape), cuda_ext.decode_minmax(payload, *shape, bits))
