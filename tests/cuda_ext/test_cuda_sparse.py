"""The CUDA kernels of the sparse code on a GPU give the bytes of the CPU kernels; see test_cuda.py."""

import itertools
import math

import pytest
import same_bits
import torch
from built import needs_cuda
from torch import Tensor

from mqgrad import cuda_ext

pytestmark = needs_cuda

WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # elements per bit
NUMELS = (0, 1, 2, 63, 700, 4100, 40_001, 6_000_001)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def heavy_tailed(numel: int, seed: int = 0) -> Tensor:
    """On the CPU, with zeros, and ties of which some may lie at the threshold."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[numel // 3 : numel // 2] = 0.5
    x[numel // 2 : numel // 2 + numel // 8] = 0.0
    return x


def assert_same(ours: Tensor, expected: Tensor) -> None:
    assert ours.is_cuda
    same_bits.assert_same(ours, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_encode_and_decode(width: int) -> None:
    for numel, dtype in zip(NUMELS, itertools.cycle(DTYPES)):
        x = heavy_tailed(numel + 1, seed=width).to(dtype)
        payload = cuda_ext.sparse_encode(x[1:], width)
        on_gpu = cuda_ext.sparse_encode(x.cuda()[1:], width)
        assert_same(on_gpu, payload)
        decoded = cuda_ext.sparse_decode(payload, numel, width)
        assert_same(cuda_ext.sparse_decode(on_gpu, numel, width), decoded)


@pytest.mark.parametrize("width", WIDTHS)
def test_encode_with_feedback(width: int) -> None:
    for numel, (alpha, beta) in itertools.product(NUMELS[1:], ((1.0, 1.0), (0.5, 0.9))):
        x, residual = heavy_tailed(numel, seed=width), torch.full((numel,), 0.01)
        on_gpu = residual.cuda()
        for _ in range(2):
            expected = cuda_ext.sparse_encode(x, width, residual=residual, alpha=alpha, beta=beta)
            assert_same(
                cuda_ext.sparse_encode(x.cuda(), width, residual=on_gpu, alpha=alpha, beta=beta), expected
            )
            assert_same(on_gpu, residual)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_zeros_and_what_is_not_finite(bad: float) -> None:
    x, residual = torch.zeros(9001), torch.ones(9001)
    x[77] = bad
    on_gpu = residual.cuda()
    expected = cuda_ext.sparse_encode(x, 16, residual=residual)
    payload = cuda_ext.sparse_encode(x.cuda(), 16, residual=on_gpu)
    assert_same(payload, expected)
    assert_same(on_gpu, residual)
    assert_same(cuda_ext.sparse_decode(payload, 9001, 16), cuda_ext.sparse_decode(expected, 9001, 16))


@pytest.mark.parametrize("width", WIDTHS)
def test_any_bytes_decode_as_on_the_cpu(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for numel in NUMELS[1:]:
        size = cuda_ext.sparse_bytes(numel, width)
        payload = torch.randint(0, 256, (size + 1,), generator=generator, dtype=torch.uint8)
        ours, expected = torch.ones(numel).cuda(), torch.ones(numel)
        cuda_ext.sparse_decode_add_(ours, payload.cuda()[1:], width)
        cuda_ext.sparse_decode_add_(expected, payload[1:], width)
        assert_same(ours, expected)


def test_nothing_waits_and_a_graph_can_capture_it() -> None:
    numel = 50_000
    x, residual = torch.zeros(numel).cuda(), torch.zeros(numel).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        cuda_ext.sparse_decode(cuda_ext.sparse_encode(x, 8, residual=residual), numel, 8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        payload = cuda_ext.sparse_encode(x, 8)
        decoded = cuda_ext.sparse_decode(payload, numel, 8)
    for seed in (1, 2):
        values = heavy_tailed(numel, seed)
        x.copy_(values)
        graph.replay()
        expected = cuda_ext.sparse_encode(values, 8)
        assert_same(payload, expected)
        assert_same(decoded, cuda_ext.sparse_decode(expected, numel, 8))
