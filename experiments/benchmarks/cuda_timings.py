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
from mqgrad.experiments.provenance import script_origin

NUMEL = {"cuda": 2**28, "cpu": 2**16}
BUCKET_SIZE, RANKS = 512, 4
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


def uniform(x: Tensor, bits: int) -> list[Timed]:
    numel, half, residual = x.numel(), x.to(torch.bfloat16), torch.zeros_like(x)
    settings = (bits, BUCKET_SIZE, True, 1)
    nearest = (bits, BUCKET_SIZE, False, 1)
    payload = cuda_ext.encode(x, *settings)
    coded, payloads = payload.numel(), payload.expand(RANKS, -1).contiguous()
    ids = torch.arange(-(-numel // BUCKET_SIZE), device=x.device)  # as the hook gives them
    return [
        Timed(
            "encode, stochastic",
            4 * numel + coded + ids.nbytes,
            lambda: cuda_ext.encode(x, *settings, ids),
        ),
        Timed("encode, nearest", 4 * numel + coded, lambda: cuda_ext.encode(x, *nearest)),
        Timed("encode, bf16 input", 2 * numel + coded, lambda: cuda_ext.encode(half, *settings)),
        Timed(
            "encode, feedback",
            12 * numel + coded,
            lambda: cuda_ext.encode(x, *nearest, residual=residual),
        ),
        Timed("decode", 4 * numel + coded, lambda: cuda_ext.decode(payload, numel, bits, BUCKET_SIZE)),
        Timed(
            "decode and add",
            8 * numel + coded,
            lambda: cuda_ext.decode_add_(residual, payload, bits, BUCKET_SIZE),
        ),
        Timed(
            f"mean of {RANKS}, encode",
            (RANKS + 1) * coded,
            lambda: cuda_ext.reduce_encode(payloads, numel, *settings),
        ),
        Timed(
            f"mean of {RANKS}, decode",
            4 * numel + RANKS * coded,
            lambda: cuda_ext.decode_mean_into(residual, payloads, bits, BUCKET_SIZE),
        ),
    ]


def rotated(x: Tensor, bits: int) -> list[Timed]:
    settings, residual, numel = (bits, BUCKET_SIZE, True, 1), torch.zeros_like(x), x.numel()
    payload = cuda_ext.encode_rotated(x, *settings)
    coded, payloads = payload.numel(), payload.expand(RANKS, -1).contiguous()
    return [
        Timed("rotated encode", 4 * numel + coded, lambda: cuda_ext.encode_rotated(x, *settings)),
        Timed(
            "rotated encode, feedback",
            12 * numel + coded,
            lambda: cuda_ext.encode_rotated(x, *settings, residual=residual, alpha=0.7),
        ),
        Timed(
            "rotated decode",
            4 * numel + coded,
            lambda: cuda_ext.decode_rotated(payload, numel, bits, BUCKET_SIZE),
        ),
        Timed(
            f"rotated mean of {RANKS}",
            (RANKS + 1) * coded,
            lambda: cuda_ext.reduce_encode_rotated(payloads, numel, *settings),
        ),
    ]


def sparse(x: Tensor, elements_per_bit: int) -> list[Timed]:
    """Encode reads the vector several times, which counts once."""
    payload, residual = cuda_ext.sparse_encode(x, elements_per_bit), torch.zeros_like(x)
    coded = payload.numel()
    return [
        Timed("sparse encode", x.nbytes + coded, lambda: cuda_ext.sparse_encode(x, elements_per_bit)),
        Timed(
            "sparse encode, feedback",
            3 * x.nbytes + coded,
            lambda: cuda_ext.sparse_encode(x, elements_per_bit, residual=residual),
        ),
        Timed(
            "sparse decode",
            x.nbytes + coded,
            lambda: cuda_ext.sparse_decode(payload, x.numel(), elements_per_bit),
        ),
    ]


def bfloat16(x: Tensor) -> list[Timed]:
    payload, residual, numel = cuda_ext.encode_bfloat16(x), torch.zeros_like(x), x.numel()
    coded, payloads = payload.numel(), payload.expand(RANKS, -1).contiguous()
    return [
        Timed("bfloat16, torch's cast", 4 * numel + coded, lambda: x.to(torch.bfloat16)),
        Timed("bfloat16 encode", 4 * numel + coded, lambda: cuda_ext.encode_bfloat16(x)),
        Timed(
            "bfloat16 encode, feedback",
            12 * numel + coded,
            lambda: cuda_ext.encode_bfloat16(x, residual=residual),
        ),
        Timed("bfloat16 decode", 4 * numel + coded, lambda: cuda_ext.decode_bfloat16(payload, numel)),
        Timed(
            "bfloat16 decode and add",
            8 * numel + coded,
            lambda: cuda_ext.decode_bfloat16_add_(residual, payload),
        ),
        Timed(
            f"bfloat16 mean of {RANKS}, encode",
            (RANKS + 1) * coded,
            lambda: cuda_ext.reduce_encode_bfloat16(payloads, numel),
        ),
        Timed(
            f"bfloat16 mean of {RANKS}, decode",
            4 * numel + RANKS * coded,
            lambda: cuda_ext.decode_bfloat16_mean_into(residual, payloads),
        ),
    ]


def by_width(x: Tensor) -> Iterator[tuple[float, list[Timed]]]:
    """The widths that matter most first, in case time runs out."""
    for bits in (4, 8, 2, 1, 3, 6, 5, 7):
        yield bits, uniform(x, bits)
    for bits in range(1, 5):
        yield bits, rotated(x, bits)
    for elements_per_bit in (2, 8, 64):
        yield 1 / elements_per_bit, sparse(x, elements_per_bit)
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
