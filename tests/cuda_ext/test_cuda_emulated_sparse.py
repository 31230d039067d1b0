"""The CUDA kernels of the sparse code, run thread by thread on the CPU, give the bytes of the CPU kernels.

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

WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # elements per bit
# One warp's elements, and several; one warp's bits of the high parts, and several.
NUMELS = (1, 2, 63, 700, 4100, 40_001)


@pytest.fixture(scope="module")
def kernels(emulated: dict[str, Future[ctypes.CDLL]]) -> ctypes.CDLL:
    return emulated["emulated_sparse"].result()


def heavy_tailed(numel: int, seed: int = 0) -> Tensor:
    """With zeros, and ties of which some may lie at the threshold."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[numel // 3 : numel // 2] = 0.5
    x[numel // 2 : numel // 2 + numel // 8] = 0.0
    return x


def encode(
    kernels: ctypes.CDLL,
    x: Tensor,
    width: int,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    with guarded(cuda_ext.sparse_bytes(x.numel(), width), torch.uint8) as payload:
        run(kernels.emulated_sparse_encode, x, x.dtype, x.numel(), width, residual, alpha, beta, payload)
    return payload


def assert_decodes_alike(kernels: ctypes.CDLL, payload: Tensor, numel: int, width: int) -> None:
    expected = torch.linspace(-1, 1, numel)
    with guarded(numel) as ours:
        ours.copy_(expected)
        run(kernels.emulated_sparse_decode_add, payload, numel, width, ours)
    cuda_ext.sparse_decode_add_(expected, payload, width)
    assert_same(ours, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_encode_and_decode(kernels: ctypes.CDLL, width: int) -> None:
    for numel, dtype in zip((0, *NUMELS), itertools.cycle(DTYPE_CODES)):
        x = heavy_tailed(numel, seed=width).to(dtype)
        payload = encode(kernels, x, width)
        assert_same(payload, cuda_ext.sparse_encode(x, width))
        assert_decodes_alike(kernels, payload, numel, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_encode_with_feedback(kernels: ctypes.CDLL, width: int) -> None:
    for numel, (alpha, beta) in itertools.product((700, 9001), ((1.0, 1.0), (0.5, 0.9))):
        x = heavy_tailed(numel, seed=width)
        ours, expected = torch.full((numel,), 0.01), torch.full((numel,), 0.01)
        for _ in range(2):
            payload = encode(kernels, x, width, ours, alpha, beta)
            assert_same(payload, cuda_ext.sparse_encode(x, width, residual=expected, alpha=alpha, beta=beta))
            assert_same(ours, expected)


def special_vectors() -> dict[str, Tensor]:
    numel = 9001
    lone, ties, tiny = torch.zeros(numel), torch.ones(numel), heavy_tailed(numel) * 1e-42
    lone[numel // 2] = -3e-39
    ties[::2] = -1
    few = heavy_tailed(numel)
    few[numel // 50 :] = 0  # fewer elements than there are entries
    wide = torch.exp2(torch.linspace(-140, 100, numel))  # most are more than 12 octaves below the top
    bad, worse = heavy_tailed(numel), heavy_tailed(numel)
    bad[77], worse[8000] = math.inf, math.nan
    vectors = {"zeros": torch.zeros(numel), "lone": lone, "ties": ties, "tiny": tiny, "few": few}
    return {**vectors, "wide": wide, "wide, reversed": wide.flip(0), "infinite": bad, "nan": worse}


@pytest.mark.parametrize("name", special_vectors())
def test_special_vectors(kernels: ctypes.CDLL, name: str) -> None:
    x = special_vectors()[name]
    for width in (1, 8, 64):
        ours, expected = torch.zeros(x.numel()), torch.zeros(x.numel())
        payload = encode(kernels, x, width, ours)
        assert_same(payload, cuda_ext.sparse_encode(x, width, residual=expected))
        assert_same(ours, expected)
        assert_decodes_alike(kernels, payload, x.numel(), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_any_bytes_decode_as_on_the_cpu(kernels: ctypes.CDLL, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for numel in NUMELS:
        size = cuda_ext.sparse_bytes(numel, width)
        noise = torch.randint(0, 256, (size + 1,), generator=generator, dtype=torch.uint8)[1:]  # not aligned
        damaged = cuda_ext.sparse_encode(heavy_tailed(numel), width)
        where = torch.randint(size, (8,), generator=generator)
        damaged[where] = torch.randint(256, (8,), generator=generator, dtype=torch.uint8)
        for payload in (noise, damaged):
            assert_decodes_alike(kernels, payload, numel, width)
