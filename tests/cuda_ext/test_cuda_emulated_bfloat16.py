"""The CUDA kernels of width 16, run thread by thread on the CPU, give the bytes of the CPU kernels.

What this shows, and what it cannot, is said in test_cuda_emulated.py.
"""

import ctypes
from concurrent.futures import Future

import pytest
import torch
from any_floats import any_floats
from emulated_cuda import DTYPE_CODES, guarded, run
from hypothesis import given
from hypothesis import strategies as st
from same_bits import assert_same
from torch import Tensor

from mqgrad import cuda_ext

# A lane has 4 elements in a row, a warp 512, a block 4096.
NUMELS = st.sampled_from([0, 1, 3, 4, 5, 511, 512, 513, 4096, 4099]) | st.integers(0, 9000)
SEEDS = st.integers(0, 2**32)
COEFFICIENTS = st.sampled_from([(1.0, 1.0), (0.3, 0.9), (0.0, 1.0)])


@pytest.fixture(scope="module")
def kernels(emulated: dict[str, Future[ctypes.CDLL]]) -> ctypes.CDLL:
    return emulated["emulated_bfloat16"].result()


def encode(
    kernels: ctypes.CDLL, x: Tensor, residual: Tensor | None, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    with guarded(2 * x.numel(), torch.uint8) as payload:
        run(kernels.emulated_encode_bfloat16, x, x.dtype, x.numel(), residual, alpha, beta, payload)
    return payload


def reduce_encode(
    kernels: ctypes.CDLL, payloads: Tensor, numel: int, residual: Tensor | None, alpha: float, beta: float
) -> Tensor:
    with guarded(2 * numel, torch.uint8) as payload:
        settings = (len(payloads), numel, residual, alpha, beta)
        run(kernels.emulated_reduce_encode_bfloat16, payloads, *settings, payload)
    return payload


def any_bytes(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)


def any_input(numel: int, seed: int, dtype: torch.dtype) -> Tensor:
    """In float64 such that have to be rounded to float32."""
    x = any_floats(numel, seed).to(dtype)
    return x * (1 + 2**-26) if dtype == torch.float64 else x


@given(NUMELS, SEEDS, st.sampled_from(list(DTYPE_CODES)), st.integers(0, 3))
def test_encode(kernels: ctypes.CDLL, numel: int, seed: int, dtype: torch.dtype, shift: int) -> None:
    x = any_input(numel + shift, seed, dtype)[shift:]
    assert_same(encode(kernels, x, None), cuda_ext.encode_bfloat16(x))


@given(NUMELS, SEEDS, st.sampled_from(list(DTYPE_CODES)), st.integers(0, 3), COEFFICIENTS, st.booleans())
def test_encode_with_feedback(
    kernels: ctypes.CDLL,
    numel: int,
    seed: int,
    dtype: torch.dtype,
    shift: int,
    coefficients: tuple[float, float],
    tame: bool,
) -> None:
    x, owed = any_input(numel, seed, dtype), any_floats(numel, seed + 1)
    if tame:  # sums of any floats hardly ever round
        x, owed = torch.linspace(-3, 5, numel).to(dtype), torch.linspace(-0.01, 0.02, numel)
    expected = owed.clone()
    with guarded(numel, shift=shift) as ours:
        ours.copy_(owed)
        payload = encode(kernels, x, ours, *coefficients)
    alpha, beta = coefficients
    assert_same(payload, cuda_ext.encode_bfloat16(x, residual=expected, alpha=alpha, beta=beta))
    assert_same(ours, expected)


@given(NUMELS, SEEDS, st.integers(1, 5), st.integers(0, 8), COEFFICIENTS, st.booleans())
def test_reduce_encode(
    kernels: ctypes.CDLL,
    numel: int,
    seed: int,
    world_size: int,
    shift: int,
    coefficients: tuple[float, float],
    has_residual: bool,
) -> None:
    """Rows of an odd number of elements are not aligned to one another."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(world_size, numel, generator=generator).exp().bfloat16()
    values[:, ::7] = any_bytes(2 * world_size * numel, seed).view(torch.bfloat16).view_as(values)[:, ::7]
    memory = torch.cat([torch.zeros(shift, dtype=torch.uint8), values.view(torch.uint8).flatten()])
    payloads = memory[shift:].view(world_size, 2 * numel)
    ours, expected = any_floats(numel, seed) * 1e-30, any_floats(numel, seed) * 1e-30
    payload = reduce_encode(kernels, payloads, numel, ours if has_residual else None, *coefficients)
    alpha, beta = coefficients
    residual = expected if has_residual else None
    reduced = cuda_ext.reduce_encode_bfloat16(payloads, numel, residual=residual, alpha=alpha, beta=beta)
    assert_same(payload, reduced)
    assert_same(ours, expected)


@given(NUMELS, SEEDS, st.integers(0, 8), st.integers(0, 3))
def test_decode_any_bytes_at_any_address(
    kernels: ctypes.CDLL, numel: int, seed: int, shift: int, shift_of_out: int
) -> None:
    payload, owed = any_bytes(2 * numel + shift, seed)[shift:], any_floats(numel, seed)
    expected = cuda_ext.decode_bfloat16(payload, numel)
    with guarded(numel, shift=shift_of_out) as ours:
        run(kernels.emulated_decode_bfloat16, payload, numel, False, ours)
        assert_same(ours, expected)
        ours.copy_(owed)
        run(kernels.emulated_decode_bfloat16, payload, numel, True, ours)
        assert_same(ours, owed + expected)


@given(NUMELS, SEEDS, st.integers(1, 5), st.integers(0, 8))
def test_decode_mean_of_any_bytes(
    kernels: ctypes.CDLL, numel: int, seed: int, world_size: int, shift: int
) -> None:
    payloads = any_bytes(2 * world_size * numel + shift, seed)[shift:].view(world_size, 2 * numel)
    expected = torch.empty(numel)
    cuda_ext.decode_bfloat16_mean_into(expected, payloads)
    with guarded(numel, shift=seed % 4) as ours:
        run(kernels.emulated_decode_bfloat16_mean, payloads, world_size, numel, ours)
        assert_same(ours, expected)


def test_sums_start_from_a_positive_zero(kernels: ctypes.CDLL) -> None:
    payloads = cuda_ext.encode_bfloat16(torch.full((3,), -0.0)).repeat(2, 1)
    assert_same(reduce_encode(kernels, payloads, 3, None, 1.0, 1.0), torch.zeros(6, dtype=torch.uint8))
