"""Figures of gradients on a GPU: those of the CPU but for rounding, the same in every call, without waiting."""

import pytest
import torch
from built import needs_cuda
from torch import Tensor

from mqgrad import cuda_ext

pytestmark = needs_cuda

NUMELS = [0, 1, 255, 512, 70_001, 1_000_003]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def gradients(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(numel, generator=generator).to(dtype) for numel in NUMELS]


@pytest.mark.parametrize("bucket_size", [100, 512, 2**40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_figures(dtype: torch.dtype, bucket_size: int) -> None:
    own, keys = gradients(dtype), range(3, 3 + len(NUMELS))
    on_gpu = [gradient.cuda() for gradient in own]
    ours = cuda_ext.gradient_figures(on_gpu, keys, bucket_size, seed=5)
    expected = cuda_ext.gradient_figures(own, keys, bucket_size, seed=5)
    assert ours.is_cuda
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(ours, cuda_ext.gradient_figures(on_gpu, keys, bucket_size, seed=5))


def test_nothing_waits_for_the_gpu_and_graphs_take_new_values() -> None:
    on_gpu, keys = [torch.zeros_like(gradient).cuda() for gradient in gradients()], range(len(NUMELS))
    torch.cuda.set_sync_debug_mode("error")
    try:
        cuda_ext.gradient_figures(on_gpu, keys)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        figures = cuda_ext.gradient_figures(on_gpu, keys)
    torch._foreach_copy_(on_gpu, [gradient.cuda() for gradient in gradients()])
    graph.replay()
    assert torch.equal(figures, cuda_ext.gradient_figures(on_gpu, keys))


def test_runs_on_the_current_stream() -> None:
    """The gradients are written on a side stream after a delay: kernels elsewhere would read what was there."""
    on_gpu, keys = [torch.zeros_like(gradient).cuda() for gradient in gradients()], range(len(NUMELS))
    values, stream = [gradient.cuda() for gradient in gradients()], torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        torch._foreach_copy_(on_gpu, values)
        figures = cuda_ext.gradient_figures(on_gpu, keys)
    stream.synchronize()
    assert torch.equal(figures, cuda_ext.gradient_figures(values, keys))
