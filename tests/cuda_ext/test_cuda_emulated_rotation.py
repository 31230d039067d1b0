"""The CUDA kernels of the rotated codes, run thread by thread on the CPU, give the bytes of the CPU kernels.

What this shows, and what it cannot, is said in test_cuda_emulated.py.
"""

import ctypes
import itertools
import math

import pytest
import torch
from emulated_cuda import COMPILER, DTYPE_CODES, assert_same, compiled, pointer
from torch import Tensor

from mqgrad import cuda_ext

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile the emulation with")

# One thread a bucket, part of a warp, a warp, half a block, a block; in global memory, one and several rows a thread.
SHAPES = [
    (0, 8),
    (1, 8),
    (2500, 8),
    (4200, 16),
    (63, 64),
    (4999, 128),
    (5000, 512),
    (3000, 2048),
    (5000, 4096),
]
SHAPES += [(9000, 8192)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled("emulated_rotation.cpp", tmp_path_factory.mktemp("emulation"))


def heavy_tailed(numel: int) -> Tensor:
    """With a bucket of zeros, one with an infinity and one whose squares underflow a float."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[: numel // 3] = 0.0
    x[numel // 3 : numel // 2] *= 1e-36
    if numel > 1000:
        x[-3] = math.inf
    return x


def encode(kernels: ctypes.CDLL, x: Tensor, bits: int, bucket_size: int, unbiased: bool, seed: int) -> Tensor:
    """The payload, with bytes around it that must stay as they are."""
    size = cuda_ext.rotated_bytes(x.numel(), bits, bucket_size)
    memory = torch.full((size + 32,), 171, dtype=torch.uint8)
    kernels.emulated_encode_rotated(
        pointer(x),
        DTYPE_CODES[x.dtype],
        ctypes.c_int64(x.numel()),
        bits,
        ctypes.c_int64(bucket_size),
        unbiased,
        ctypes.c_uint64(seed),
        ctypes.c_void_p(memory.data_ptr() + 16),
    )
    assert (memory[:16] == 171).all()
    assert (memory[16 + size :] == 171).all()
    return memory[16 : 16 + size]


def decode(
    kernels: ctypes.CDLL, payload: Tensor, out: Tensor, bits: int, bucket_size: int, add: bool
) -> None:
    kernels.emulated_decode_rotated(
        pointer(payload), ctypes.c_int64(out.numel()), bits, ctypes.c_int64(bucket_size), add, pointer(out)
    )


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
            memory = torch.full((numel + 16,), 2.5)
            ours = memory[8 + shift : 8 + shift + numel]
            decode(kernels, payload, ours, bits, bucket_size, add=False)
            expected = cuda_ext.decode_rotated(payload, numel, bits, bucket_size)
            assert_same(ours, expected)
            decode(kernels, payload, ours, bits, bucket_size, add=True)
            assert_same(ours, expected + expected)
            assert (memory[: 8 + shift] == 2.5).all()
            assert (memory[8 + shift + numel :] == 2.5).all()
