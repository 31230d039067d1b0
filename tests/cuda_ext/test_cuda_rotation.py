"""The CUDA kernels of the rotated codes on a GPU give the bytes of the CPU kernels; see test_cuda.py."""

import itertools
import math

import pytest
import same_bits
import torch
from built import needs_cuda
from torch import Tensor

from mqgrad import cuda_ext

pytestmark = needs_cuda

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPES = [
    (0, 8),
    (1, 8),
    (2500, 8),
    (4200, 16),
    (5000, 32),
    (63, 64),
    (4999, 128),
    (9000, 512),
    (1_000_003, 512),
]
SHAPES += [(6000, 2048), (90_000, 4096), (20_000, 8192), (150_000, 65_536), (6_000_000, 8192)]


def heavy_tailed(numel: int) -> Tensor:
    """On the CPU, with buckets of zeros and one with an infinity."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[: numel // 3] = 0.0
    if numel > 1000:
        x[-3] = math.inf
    return x


def assert_same(ours: Tensor, expected: Tensor) -> None:
    assert ours.is_cuda
    same_bits.assert_same(ours, expected)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("bits", range(1, 5))
def test_encode_and_decode(bits: int, unbiased: bool) -> None:
    in_pieces = itertools.product([shape for shape in SHAPES if shape[1] == 512], DTYPES)
    for (numel, bucket_size), dtype in [*zip(SHAPES, itertools.cycle(DTYPES)), *in_pieces]:
        x = heavy_tailed(numel + 1).to(dtype)
        payload = cuda_ext.encode_rotated(x[1:], bits, bucket_size, unbiased, 5)
        on_gpu = cuda_ext.encode_rotated(x.cuda()[1:], bits, bucket_size, unbiased, 5)
        assert_same(on_gpu, payload)
        decoded = cuda_ext.decode_rotated(payload, numel, bits, bucket_size)
        assert_same(cuda_ext.decode_rotated(on_gpu, numel, bits, bucket_size), decoded)
        shifted = torch.cat([on_gpu[:1], on_gpu])[1:]  # not aligned
        accumulator = torch.ones(numel).cuda()
        cuda_ext.decode_rotated_add_(accumulator, shifted, bits, bucket_size)
        assert_same(accumulator, 1 + decoded)


@pytest.mark.parametrize("bits", range(1, 5))
def test_feedback_and_reduction(bits: int) -> None:
    def run(device: str) -> list[Tensor]:
        x, residual = heavy_tailed(9000).to(device), torch.full((9000,), 0.01, device=device)
        out = torch.empty(9000, device=device)
        payload = cuda_ext.encode_rotated(x, bits, 512, True, 5, residual=residual, alpha=0.7, beta=0.9)
        cuda_ext.decode_rotated_into(out, payload, bits, 512)
        payloads = torch.stack([payload, cuda_ext.encode_rotated(-x, bits, 512, True, 6), payload])
        reduced = cuda_ext.reduce_encode_rotated(payloads, 9000, bits, 512, True, 7, residual=residual)
        mean = torch.empty(9000, device=device)
        cuda_ext.decode_rotated_mean_into(mean, payloads.repeat(12, 1), bits, 512)  # signs of 32 are kept
        memory = torch.empty(len(payload) + 1, dtype=torch.uint8, device=device)
        cuda_ext.encode_rotated(x.bfloat16(), bits, 512, True, 8, out=memory[1:])  # not aligned
        return [payload, out, reduced, residual, mean, memory[1:]]

    for ours, expected in zip(run("cuda"), run("cpu"), strict=True):
        assert_same(ours, expected)


@pytest.mark.parametrize("bucket_size", [512, 16_384])
def test_nothing_waits_and_a_graph_can_capture_it(bucket_size: int) -> None:
    x, numel = torch.zeros(50_000).cuda(), 50_000
    torch.cuda.set_sync_debug_mode("error")
    try:
        payload = cuda_ext.encode_rotated(x, 3, bucket_size, True, 1)
        cuda_ext.decode_rotated(payload, numel, 3, bucket_size)
        cuda_ext.reduce_encode_rotated(payload.unsqueeze(0), numel, 3, bucket_size, True, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        payload = cuda_ext.encode_rotated(x, 3, bucket_size, True, 1)
        decoded = cuda_ext.decode_rotated(payload, numel, 3, bucket_size)
        reduced = cuda_ext.reduce_encode_rotated(payload.unsqueeze(0), numel, 3, bucket_size, True, 2)
    values = heavy_tailed(numel)
    x.copy_(values)
    graph.replay()
    expected = cuda_ext.encode_rotated(values, 3, bucket_size, True, 1)
    assert_same(payload, expected)
    assert_same(decoded, cuda_ext.decode_rotated(expected, numel, 3, bucket_size))
    assert_same(
        reduced, cuda_ext.reduce_encode_rotated(expected.unsqueeze(0), numel, 3, bucket_size, True, 2)
    )
