"""The CUDA kernels that take figures of gradients, run thread by thread on the CPU, find what the CPU's find.

What this shows, and what it cannot, is said in test_cuda_emulated.py.
"""

import ctypes
import math
from concurrent.futures import Future

import pytest
import torch
from emulated_cuda import guarded, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mqgrad import cuda_ext

COLUMNS = 2 + cuda_ext.SKETCH_SIZE
# A row of the sketch is 256 elements, a strip 8192, a part 65536.
NUMELS = st.integers(0, 3000) | st.sampled_from([255, 256, 8191, 8192, 8193])
BUCKET_SIZES = st.integers(1, 20) | st.sampled_from([32, 256, 512, 3000, 20_000, 2**40])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
KEYS = st.integers(0, 2**40)


@pytest.fixture(scope="module")
def kernels(emulated: dict[str, Future[ctypes.CDLL]]) -> ctypes.CDLL:
    return emulated["emulated_figures"].result()


def figures(kernels: ctypes.CDLL, x: Tensor, bucket_size: int, seed: int, key: int) -> Tensor:
    size = min(bucket_size, max(x.numel(), 1))
    with guarded(COLUMNS, torch.float64) as row:
        run(kernels.emulated_figures, x, x.dtype, x.numel(), size, seed, key, row)
    return row.clone()


def gradient(numel: int) -> Tensor:
    generator = torch.Generator().manual_seed(numel)
    return torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()


@example(255, 16, torch.float16, -(2**63), 2**40)
@example(8193, 256, torch.bfloat16, -1, 0)
@example(65_535, 7, torch.float64, 3, 1)
@example(65_536, 512, torch.float16, 2**63 - 1, 2)
@example(65_537, 3000, torch.float32, 0, 3)
@example(65_537, 2**40, torch.bfloat16, 1, 2**40)
@example(200_001, 20_000, torch.float32, 2, 0)
@settings(max_examples=50)
@given(NUMELS, BUCKET_SIZES, DTYPES, st.integers(-(2**63), 2**63 - 1), KEYS)
def test_figures(
    kernels: ctypes.CDLL, numel: int, bucket_size: int, dtype: torch.dtype, seed: int, key: int
) -> None:
    x = gradient(numel).to(dtype)
    ours = figures(kernels, x, bucket_size, seed, key)
    expected = cuda_ext.gradient_figures([x], [key], bucket_size, seed=seed)[0]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(ours, figures(kernels, x, bucket_size, seed, key))


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(kernels: ctypes.CDLL, special: float) -> None:
    x = torch.ones(2000)
    x[700] = special
    norm_sq, peak_energy, *sketch = figures(kernels, x, 512, 0, 0).tolist()
    assert not math.isfinite(norm_sq)
    assert not math.isfinite(peak_energy)
    assert sum(not math.isfinite(value) for value in sketch) == 1
