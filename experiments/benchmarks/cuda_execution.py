"""How the CUDA kernels run, beyond the bytes that they give; checks of cuda_checks.py."""

from collections.abc import Callable

import torch
from cuda_inputs import Sizes, gradient, same
from torch import Tensor

from mqgrad import cuda_ext


def round_trips(x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """One of each family of codes, encoded and decoded, and averaged as by the hook."""
    numel = x.numel()
    return {
        "uniform, mean": lambda: _uniform_mean(x),
        "uniform, mean of any bucket": lambda: _uniform_mean(x, bucket_size=100),
        "rotated, mean": lambda: _rotated_mean(x),
        "bfloat16, mean": lambda: _bfloat16_mean(x),
        "uniform": lambda: cuda_ext.decode(cuda_ext.encode(x, 3, 512, True, 1), numel, 3, 512),
        "uniform, any bucket": lambda: cuda_ext.decode(cuda_ext.encode(x, 3, 100, False, 1), numel, 3, 100),
        "rotated": lambda: cuda_ext.decode_rotated(
            cuda_ext.encode_rotated(x, 2, 512, True, 1), numel, 2, 512
        ),
        "sparse": lambda: cuda_ext.sparse_decode(cuda_ext.sparse_encode(x, 8), numel, 8),
        "bfloat16": lambda: cuda_ext.decode_bfloat16(cuda_ext.encode_bfloat16(x), numel),
        "minmax": lambda: cuda_ext.decode_minmax(
            cuda_ext.encode_minmax(x.view(50, -1), 4), 50, numel // 50, 4
        ),
    }


def _uniform_mean(x: Tensor, bucket_size: int = 512) -> Tensor:
    """Through a residual, with identities of buckets, to memory at an odd address, and coded again."""
    settings, numel = (3, bucket_size, True, 1), x.numel()
    ids = torch.arange(7, 7 + -(-numel // bucket_size), device=x.device)
    memory = torch.empty(
        cuda_ext.payload_bytes(numel, 3, bucket_size) + 1, dtype=torch.uint8, device=x.device
    )
    residual = torch.zeros_like(x)
    cuda_ext.encode(x, *settings, ids, residual=residual, out=memory[1:])
    mean = cuda_ext.reduce_encode(memory[1:].repeat(3, 1), numel, *settings, ids, residual=residual)
    cuda_ext.decode_mean_into(residual, mean.repeat(2, 1), 3, bucket_size)
    return residual


def _rotated_mean(x: Tensor) -> Tensor:
    settings, residual = (2, 512, True, 1), torch.zeros_like(x)
    payload = cuda_ext.encode_rotated(x, *settings, residual=residual, alpha=0.7)
    mean = cuda_ext.reduce_encode_rotated(payload.repeat(3, 1), x.numel(), *settings, residual=residual)
    cuda_ext.decode_rotated_mean_into(residual, mean.repeat(2, 1), 2, 512)
    return residual


def _bfloat16_mean(x: Tensor) -> Tensor:
    residual = torch.zeros_like(x)
    payload = cuda_ext.encode_bfloat16(x, residual=residual)
    mean = cuda_ext.reduce_encode_bfloat16(payload.repeat(3, 1), x.numel(), residual=residual)
    cuda_ext.decode_bfloat16_mean_into(residual, mean.repeat(2, 1))
    return residual


def check_no_waiting(sizes: Sizes, device: str) -> None:
    """Nothing synchronises the host with the GPU."""
    x = gradient(10_000).to(device)
    waiting = []
    for name, run in round_trips(x).items():
        torch.cuda.set_sync_debug_mode("error")
        try:
            run()
        except RuntimeError as error:
            waiting.append(f"{name} ({str(error).splitlines()[0]})")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    if waiting:
        raise AssertionError("these wait for the GPU: " + ", ".join(waiting))


def check_graphs(sizes: Sizes, device: str) -> None:
    """Captured on zeros, replayed on other values."""
    values = gradient(10_000).nan_to_num()
    expected = round_trips(values)
    x = torch.zeros(10_000, device=device)
    for name, run in round_trips(x).items():
        x.zero_()
        run()  # warms up
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decoded = run()
        x.copy_(values)
        graph.replay()
        same(name, decoded, expected[name]())
