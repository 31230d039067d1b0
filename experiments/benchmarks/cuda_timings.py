"""Time the ops of a gradient's way on the GPU; a stage of cuda_codec.py.

A figure is the bytes moved, each read and each write counted once, over the median time, beside what the same card's
device-to-device copy moved a moment before. The GPU is kept busy while an op is handed to it: what Python and torch
take for that is not in its time. ``--device cpu`` times few elements on the CPU, to try this script.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cuda_report
import script
import torch
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.codecs.bfloat16 import Bfloat16Codec
from mqgrad.codecs.rotation import RotationCodec
from mqgrad.codecs.sparse import SparseCodec
from mqgrad.codecs.uniform import UniformCodec
from mqgrad.codecs.vector_codec import Feedback, VectorCodec
from mqgrad.experiments.provenance import script_origin
from mqgrad.widths import Width

NUMEL = {"cuda": 2**28, "cpu": 2**16}
BUCKET_SIZE, RANKS, SEED = 512, 4, 1
WARM_UPS, REPETITIONS = 3, 15
BUSY_CYCLES = 2_000_000  # of the GPU, about a millisecond


class Timed(NamedTuple):
    """An op, and the bytes that it must move."""

    op: str
    moved: int
    run: Callable[[], object]


def seconds(operation: Callable[[], object], device: str) -> float:
    """Median, on the GPU's own clock."""
    once = _seconds_on_gpu if device == "cuda" else _seconds_on_cpu
    times = [once(operation) for _ in range(WARM_UPS + REPETITIONS)]
    return statistics.median(times[WARM_UPS:])


def _seconds_on_gpu(operation: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(BUSY_CYCLES)
    start.record()
    operation()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _seconds_on_cpu(operation: Callable[[], object]) -> float:
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def timed(codec: VectorCodec, x: Tensor, label: str, alpha: float = 1.0) -> list[Timed]:
    """To bytes and back. A sparse code reads the vector several times, which counts once."""
    numel, feedback = x.numel(), Feedback(torch.zeros_like(x), alpha)
    payload = codec.encode(x, SEED)
    moved = x.nbytes + payload.nbytes
    return [
        Timed(f"{label}encode", moved, lambda: codec.encode(x, SEED)),
        Timed(
            f"{label}encode, feedback",
            moved + 2 * x.nbytes,
            lambda: codec.encode(x, SEED, feedback=feedback),
        ),
        Timed(f"{label}decode", moved, lambda: codec.decode(payload, numel)),
    ]


def timed_sums(codec: VectorCodec, x: Tensor, label: str) -> list[Timed]:
    """Payloads of several ranks. Not of sparse codes: their sums touch only what was kept."""
    numel, sums, payload = x.numel(), torch.zeros_like(x), codec.encode(x, SEED)
    coded, payloads = payload.nbytes, payload.expand(RANKS, -1).contiguous()
    return [
        Timed(
            f"{label}decode and add",
            2 * x.nbytes + coded,
            lambda: codec.decode_add_(sums, payload),
        ),
        Timed(
            f"{label}mean of {RANKS}, encode",
            (RANKS + 1) * coded,
            lambda: codec.encode_mean(payloads, numel, SEED),
        ),
        Timed(
            f"{label}mean of {RANKS}, decode",
            x.nbytes + RANKS * coded,
            lambda: codec.decode_mean_into_(sums, payloads),
        ),
    ]


def uniform(x: Tensor, bits: int) -> list[Timed]:
    nearest = UniformCodec(bits=bits, bucket_size=BUCKET_SIZE, stochastic=False)
    stochastic = UniformCodec(bits=bits, bucket_size=BUCKET_SIZE, stochastic=True)
    coded, half = nearest.payload_bytes(x.numel()), x.to(torch.bfloat16)
    ids = torch.arange(-(-x.numel() // BUCKET_SIZE), device=x.device)  # as the hook gives them
    encode, *others = timed(nearest, x, "")
    return [
        Timed(
            "encode, stochastic",
            x.nbytes + coded + ids.nbytes,
            lambda: stochastic.encode(x, SEED, ids),
        ),
        encode._replace(op="encode, nearest"),
        Timed("encode, bf16 input", half.nbytes + coded, lambda: stochastic.encode(half, SEED)),
        *others,
        *timed_sums(stochastic, x, ""),
    ]


def rotated(x: Tensor, bits: int) -> list[Timed]:
    codec = RotationCodec(bits=bits, bucket_size=BUCKET_SIZE, unbiased=True)
    add, encode, decode = timed_sums(codec, x, "rotated ")
    encode = encode._replace(op=f"rotated mean of {RANKS}")  # its name in earlier reports
    return [*timed(codec, x, "rotated ", alpha=0.7), add, encode, decode]


def bfloat16(x: Tensor) -> list[Timed]:
    codec = Bfloat16Codec()
    cast = Timed("bfloat16, torch's cast", x.nbytes + 2 * x.numel(), lambda: x.to(torch.bfloat16))
    return [cast, *timed(codec, x, "bfloat16 "), *timed_sums(codec, x, "bfloat16 ")]


def by_width(x: Tensor) -> Iterator[tuple[Width, list[Timed]]]:
    """The widths that matter most first, in case time runs out."""
    for bits in (4, 8, 2, 1, 3, 6, 5, 7):
        yield bits, uniform(x, bits)
    for bits in range(1, 5):
        yield bits, rotated(x, bits)
    for few_bits in (1 / 2, 1 / 8, 1 / 64):
        yield few_bits, timed(SparseCodec(bits=few_bits), x, "sparse ")
    yield 16, bfloat16(x)
    yield 32, [Timed("figures", x.nbytes, lambda: cuda_ext.gradient_figures([x], [0]))]


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--output", type=script.output_file, required=True, help="of cuda_report.py")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    device = arguments.device
    cuda_report.update(
        arguments.output,
        **script_origin(),
        card=torch.cuda.get_device_name() if device == "cuda" else "CPU, to try the script",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        elements=NUMEL[device],
        bucket_size=BUCKET_SIZE,
    )
    x, rows = torch.randn(NUMEL[device], device=device), []
    copy = torch.empty_like(x)
    for bits, operations in by_width(x):
        copied = 2 * x.nbytes / seconds(lambda: copy.copy_(x), device)
        for op, moved, run in operations:
            rate = moved / seconds(run, device)
            rows.append({"op": op, "bits": bits, "GB/s": rate / 1e9, "copy GB/s": copied / 1e9})
        cuda_report.update(arguments.output, rows=rows)


if __name__ == "__main__":
    main()
