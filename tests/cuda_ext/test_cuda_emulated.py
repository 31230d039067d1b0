"""The CUDA kernels, compiled for the CPU and run thread by thread, give the bytes of the CPU kernels.

This holds for machines without a GPU: it shows that the indexing, the packing, the reductions and the randomness of
the kernels are right, not that a GPU's arithmetic, memory and scheduling are. tests/cuda_ext/test_cuda.py does that.
"""

import ctypes
import itertools

import pytest
import torch
from emulated_cuda import COMPILER, DTYPE_CODES, assert_same, compiled, pointer
from torch import Tensor

from mqgrad import cuda_ext

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile the emulation with")

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
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled("emulated_kernels.cpp", tmp_path_factory.mktemp("emulation"))


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
    """The payload, with bytes around it that must stay as they are."""
    size = cuda_ext.payload_bytes(x.numel(), bits, bucket_size)
    memory = torch.full((size + 32,), 171, dtype=torch.uint8)
    kernels.emulated_encode(
        pointer(x),
        DTYPE_CODES[x.dtype],
        ctypes.c_int64(x.numel()),
        bits,
        ctypes.c_int64(bucket_size),
        stochastic,
        ctypes.c_uint64(seed),
        pointer(bucket_ids),
        pointer(residual),
        ctypes.c_double(alpha),
        ctypes.c_double(beta),
        ctypes.c_void_p(memory.data_ptr() + 16),
    )
    assert (memory[:16] == 171).all()
    assert (memory[16 + size :] == 171).all()
    return memory[16 : 16 + size]


def decode_add(
    kernels: ctypes.CDLL, payload: Tensor, out: Tensor, bits: int, bucket_size: int, add: bool
) -> None:
    kernels.emulated_decode(
        pointer(payload), ctypes.c_int64(out.numel()), bits, ctypes.c_int64(bucket_size), add, pointer(out)
    )


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
            cuda_ext.encode_with_feedback(x, expected, bits, bucket_size, stochastic, 2**63 + 1, alpha, beta),
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
        coded = torch.empty_like(payloads[0])
        kernels.emulated_reduce_encode(
            pointer(payloads),
            ctypes.c_int64(3),
            ctypes.c_int64(numel),
            bits,
            ctypes.c_int64(bucket_size),
            stochastic,
            ctypes.c_uint64(9),
            pointer(ours) if has_residual else None,
            ctypes.c_double(0.5),
            ctypes.c_double(1.0),
            pointer(coded),
        )
        residual = expected if has_residual else None
        settings = (bits, bucket_size, stochastic, 9)
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
        memory = torch.full((numel + 16,), 2.5)
        ours = memory[8 + shift : 8 + shift + numel]
        decode_add(kernels, payload, ours, bits, bucket_size, add=False)
        expected = cuda_ext.decode(payload, numel, bits, bucket_size)
        assert_same(ours, expected)
        decode_add(kernels, payload, ours, bits, bucket_size, add=True)
        assert_same(ours, expected + expected)
        assert (memory[: 8 + shift] == 2.5).all()
        assert (memory[8 + shift + numel :] == 2.5).all()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("shape", [(1, 1), (40, 3), (3, 40), (70, 33), (2, 1200)])
def test_minmax(kernels: ctypes.CDLL, bits: int, shape: tuple[int, int]) -> None:
    rows, columns = map(ctypes.c_int64, shape)
    for dtype in DTYPES:
        x = gradient(shape[0] * shape[1], dtype).view(shape)
        expected = cuda_ext.encode_minmax(x, bits)
        payload = torch.empty_like(expected)
        kernels.emulated_encode_minmax(pointer(x), DTYPE_CODES[dtype], rows, columns, bits, pointer(payload))
        assert_same(payload, expected)
        values = torch.empty(shape)
        kernels.emulated_decode_minmax(pointer(payload), rows, columns, bits, pointer(values))
        assert_same(values, cuda_ext.decode_minmax(payload, *shape, bits))
