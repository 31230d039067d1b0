"""The CUDA kernels of the rotated codes, run thread by thread on the CPU, give the bytes of the CPU kernels.

What this shows, and what it cannot, is said in test_cuda_emulated.py.
"""

import ctypes
import itertools
import math
from concurrent.futures import Future

import pytest
import torch
from emulated_cuda import DTYPE_CODES, guarded, run
from same_bits import assert_same
from torch import Tensor

from mqgrad import cuda_ext

# One thread a bucket, part of a warp, a warp in registers and not, half a block, a block; in global memory, one and
# several rows a thread.
SHAPES = [
    (0, 8),
    (1, 8),
    (2500, 8),
    (4200, 16),
    (63, 64),
    (4999, 128),
    (5000, 512),
    (5000, 1024),
    (3000, 2048),
    (5000, 4096),
]
SHAPES += [(9000, 8192)]


@pytest.fixture(scope="module")
def kernels(emulated: dict[str, Future[ctypes.CDLL]]) -> ctypes.CDLL:
    return emulated["emulated_rotation"].result()


def heavy_tailed(numel: int) -> Tensor:
    """With a bucket of zeros, one with an infinity and one whose squares underflow a float."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[: numel // 3] = 0.0
    x[numel // 3 : numel // 2] *= 1e-36
    if numel > 1000:
        x[-3] = math.inf
    return x


def encode(
    kernels: ctypes.CDLL,
    x: Tensor,
    bits: int,
    bucket_size: int,
    unbiased: bool,
    seed: int,
    residual: Tensor | None = None,
    alpha: float = 0.0,
    beta: float = 0.0,
) -> Tensor:
    with guarded(cuda_ext.rotated_bytes(x.numel(), bits, bucket_size), torch.uint8) as payload:
        settings = (bits, bucket_size, unbiased, seed, residual, alpha, beta)
        run(kernels.emulated_encode_rotated, x, x.dtype, x.numel(), *settings, None, 0, payload)
    return payload


def reduce_encode(
    kernels: ctypes.CDLL,
    payloads: Tensor,
    numel: int,
    bits: int,
    residual: Tensor | None,
    alpha: float,
    beta: float,
) -> Tensor:
    """In buckets of 512, unbiased, with the seed 7."""
    with guarded(cuda_ext.rotated_bytes(numel, bits, 512), torch.uint8) as payload:
        settings = (bits, 512, True, 7, residual, alpha, beta)
        of = (payloads, len(payloads))
        run(kernels.emulated_encode_rotated, None, torch.float32, numel, *settings, *of, payload)
    return payload


def decode(
    kernels: ctypes.CDLL, payload: Tensor, out: Tensor, bits: int, bucket_size: int, add: bool
) -> None:
    run(kernels.emulated_decode_rotated, payload, out.numel(), bits, bucket_size, add, out)


@pytest.mark.parametrize("bits", range(1, 5))
@pytest.mark.parametrize("unbiased", [False, True])
def test_encode(kernels: ctypes.CDLL, bits: int, unbiased: bool) -> None:
    for (numel, bucket_size), dtype in zip(SHAPES, itertools.cycle(DTYPE_CODES)):
        x = heavy_tailed(numel + 1)[1:].to(dtype)  # not aligned for vector loads
        ours = encode(kernels, x, bits, bucket_size, unbiased, -numel)
        assert_same(ours, cuda_ext.encode_rotated(x, bits, bucket_size, unbiased, -numel))


def test_the_largest_bucket(kernels: ctypes.CDLL) -> None:
    x = heavy_tailed(1000)
    ours = encode(kernels, x, 3, 65_536, True, 5)
    assert_same(ours, cuda_ext.encode_rotated(x, 3, 65_536, True, 5))
    decoded = torch.empty(1000)
    decode(kernels, ours, decoded, 3, 65_536, add=False)
    assert_same(decoded, cuda_ext.decode_rotated(ours, 1000, 3, 65_536))


@pytest.mark.parametrize("bits", range(1, 5))
@pytest.mark.parametrize("shift", [0, 1])
def test_decode_any_bytes_at_any_address(kernels: ctypes.CDLL, bits: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    for numel, bucket_size in SHAPES:
        size = cuda_ext.rotated_bytes(numel, bits, bucket_size)
        noise = torch.randint(0, 256, (size + shift,), generator=generator, dtype=torch.uint8)[shift:]
        coded = cuda_ext.encode_rotated(heavy_tailed(numel), bits, bucket_size, True, bits)
        for payload in (noise, torch.cat([noise[:shift], coded])[shift:]):
            expected = cuda_ext.decode_rotated(payload, numel, bits, bucket_size)
            with guarded(numel, shift=shift) as ours:
                decode(kernels, payload, ours, bits, bucket_size, add=False)
                assert_same(ours, expected)
                decode(kernels, payload, ours, bits, bucket_size, add=True)
                assert_same(ours, expected + expected)


FUSED_SIZES = [0, 1, 511, 512, 5000]
"""In buckets of 512, which a warp holds: less than one, one, several and a part.

There is one block of eight warps, two of which have two buckets in the last case."""


@pytest.mark.parametrize("bits", range(1, 5))
def test_encode_with_feedback_and_keep_the_error(kernels: ctypes.CDLL, bits: int) -> None:
    """Where there is an infinity what was owed stays: in the last bucket, and in the first of two of a warp."""
    for numel, dtype in zip(FUSED_SIZES, itertools.cycle(DTYPE_CODES)):
        x = heavy_tailed(numel).to(dtype)
        x[3:4] = math.inf
        with guarded(numel, shift=1) as kept:
            residual = kept.copy_(heavy_tailed(numel).nan_to_num(posinf=2.0)).clone()
            ours = encode(kernels, x, bits, 512, bits % 2 == 0, 3, kept, 0.7, 0.9)
            settings = (bits, 512, bits % 2 == 0, 3)
            expected = cuda_ext.encode_rotated(x, *settings, residual=residual, alpha=0.7, beta=0.9)
            assert_same(ours, expected)
            assert_same(kept, residual)


@pytest.mark.parametrize("bits", range(1, 5))
@pytest.mark.parametrize("count", [1, 3, 34])
def test_means_of_payloads(kernels: ctypes.CDLL, bits: int, count: int) -> None:
    """A block keeps the signs of 32; the last payload is noise."""
    generator = torch.Generator().manual_seed(bits)
    for numel in FUSED_SIZES:
        coded = [cuda_ext.encode_rotated(heavy_tailed(numel), bits, 512, True, seed) for seed in range(count)]
        coded[-1] = torch.randint(0, 256, coded[-1].shape, generator=generator, dtype=torch.uint8)
        payloads = torch.stack(coded)
        mean, residual = torch.empty(numel), heavy_tailed(numel).nan_to_num(posinf=2.0)
        cuda_ext.decode_rotated_mean_into(mean, payloads, bits, 512)
        with guarded(numel) as ours:
            run(kernels.emulated_decode_rotated_mean, payloads, count, numel, bits, ours)
            assert_same(ours, mean)
        expected = cuda_ext.reduce_encode_rotated(payloads, numel, bits, 512, True, 7)
        assert_same(reduce_encode(kernels, payloads, numel, bits, None, 1.0, 1.0), expected)
        kept = residual.clone()
        expected = cuda_ext.reduce_encode_rotated(
            payloads, numel, bits, 512, True, 7, residual=residual, alpha=0.7, beta=0.9
        )
        assert_same(reduce_encode(kernels, payloads, numel, bits, kept, 0.7, 0.9), expected)
        assert_same(kept, residual)
