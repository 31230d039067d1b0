"""How the CUDA kernels run, beyond the bytes that they give; checks of cuda_checks.py."""

import functools
from collections.abc import Callable

import torch
from cuda_inputs import Sizes, gradient, same
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.codecs.bfloat16 import Bfloat16Codec
from mqgrad.codecs.rotation import RotationCodec
from mqgrad.codecs.sparse import SparseCodec
from mqgrad.codecs.uniform import UniformCodec
from mqgrad.codecs.vector_codec import Feedback, VectorCodec

SEED = 1
CODES: dict[str, VectorCodec] = {
    "uniform": UniformCodec(bits=3, bucket_size=512, stochastic=True),
    "uniform, any bucket": UniformCodec(bits=3, bucket_size=100, stochastic=True),
    "uniform, any bucket, nearest": UniformCodec(bits=3, bucket_size=100, stochastic=False),
    "rotated": RotationCodec(bits=2, bucket_size=512, unbiased=True),
    "sparse": SparseCodec(bits=1 / 8),
    "bfloat16": Bfloat16Codec(),
}


def round_trips(x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """By every code, encoded and decoded, and averaged as by the hook."""
    trips: dict[str, Callable[[], Tensor]] = {"minmax": lambda: _minmax(x)}
    for name, codec in CODES.items():
        trips[f"{name}, mean"] = functools.partial(_mean, codec, x)
        trips[name] = functools.partial(_round_trip, codec, x)
    return trips


def _minmax(x: Tensor) -> Tensor:
    rows, columns = 50, x.numel() // 50
    return cuda_ext.decode_minmax(cuda_ext.encode_minmax(x.view(rows, columns), 4), rows, columns, 4)


def _round_trip(codec: VectorCodec, x: Tensor) -> Tensor:
    return codec.decode(codec.encode(x, SEED), x.numel())


def _mean(codec: VectorCodec, x: Tensor) -> Tensor:
    """Through a residual, with identities of buckets, to memory at an odd address, and coded again."""
    numel, residual, ids = x.numel(), torch.zeros_like(x), None
    if isinstance(codec, UniformCodec):  # the others use none
        ids = torch.arange(7, 7 + -(-numel // codec.bucket_size), device=x.device)
    memory = torch.empty(codec.payload_bytes(numel) + 1, dtype=torch.uint8, device=x.device)
    codec.encode(x, SEED, ids, feedback=Feedback(residual, alpha=0.7), out=memory[1:])
    mean = codec.encode_mean(memory[1:].repeat(3, 1), numel, SEED, ids, feedback=Feedback(residual))
    codec.decode_mean_into_(residual, mean.repeat(2, 1))
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
