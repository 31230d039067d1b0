"""How fast the codec is on this machine, beside a copy and a read of the same floats, and beside other codecs."""

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from mqgrad.codec import Codec, Rounding
from mqgrad.widths import Width

SEED = 7  # of the Gaussian vector that is coded


class Coder(NamedTuple):
    """One way to code a float32 vector [N], ours or a peer's."""

    name: str
    bits: Width
    """Bits per element on the wire, scales not counted."""
    encode: Callable[[torch.Tensor], Any]
    decode_add: Callable[[torch.Tensor, Any], object]
    """Adds what ``encode`` returned to the first argument."""


class Skipped(NamedTuple):
    """A peer that is not measured."""

    name: str
    reason: str


class Operation(NamedTuple):
    """Something that is timed, in turn with others."""

    name: str
    run: Callable[[], object]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CodecFigures:
    """Speed and error of one coder. GB/s are 10⁹ bytes of float32 input (output for decoding) a second.

    ``…_per_copy`` is how many times as fast as ``memcpy`` of the same floats, ``encode_per_read`` as ``torch.sum``
    over them; both measured in the same rounds, 1 is equal, more is faster.
    """

    coder: str
    bits: Width
    threads: int
    copy_gb_per_s: float
    read_gb_per_s: float
    encode_gb_per_s: float
    encode_per_copy: float
    encode_per_read: float
    decode_add_gb_per_s: float
    decode_add_per_copy: float
    round_trip_per_copy: float
    """One copy's seconds over those of encode and decode-and-add together."""
    nmse: float
    """‖Q(x) − x‖² / ‖x‖² on Gaussian x."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CodecReport:
    """Everything that :func:`measure_codec` found."""

    mebibytes: float
    """Of float32 coded at a time."""
    rounds: int
    figures: list[CodecFigures]
    skipped: list[Skipped]


PeerFinder = Callable[[int, int], tuple[list[Coder], list[Skipped]]]
"""Peers for a number of elements and of threads."""


def measure_codec(
    find_peers: PeerFinder,
    *,
    mebibytes: float = 64.0,
    rounds: int = 7,
    widths: Sequence[Width] = (*range(1, 9), 16),
    thread_counts: Sequence[int] | None = None,
) -> CodecReport:
    """Measure our codec at every width and the peers, on a Gaussian vector.

    Args:
        find_peers: :func:`mqgrad.experiments.bench_peers.find_peers`.
        mebibytes: of float32 coded at a time; below the size of the last cache, ``memcpy`` is no measure of memory.
        rounds: timed repetitions; figures are medians over them.
        widths: of our codec, in bits.
        thread_counts: one, and all that the process may use, by default.

    Raises:
        ValueError: a width that the codec does not know.
    """
    x = torch.randn(int(mebibytes * 2**20) // 4, generator=torch.Generator().manual_seed(SEED))
    figures: list[CodecFigures] = []
    skipped: list[Skipped] = []
    for threads in thread_counts or sorted({1, available_threads()}):
        with num_threads(threads):
            peers, skipped = find_peers(x.numel(), threads)
            groups = [our_coders(bits, x.numel()) for bits in widths] + [[peer] for peer in peers]
            for group in groups:
                figures += measure_group(group, x, threads, rounds)
    return CodecReport(mebibytes=mebibytes, rounds=rounds, figures=figures, skipped=skipped)


def our_coders(bits: Width, numel: int) -> list[Coder]:
    """Nearest and stochastic rounding, and ``feedback``: nearest with error feedback, which the hook uses."""
    coders = [_rounding_coder("nearest", bits)]
    if 1 <= bits < 16:  # below 1 the largest, at 16 bfloat16: nothing is random
        coders.append(_rounding_coder("stochastic", bits))
    codec, residual = Codec(), torch.zeros(numel)
    return [
        *coders,
        Coder(
            "feedback",  # nearest
            bits,
            lambda x: codec.encode_with_feedback(x, residual, bits),
            lambda out, payload: codec.decode_add_(out, payload, bits),
        ),
    ]


def _rounding_coder(rounding: Rounding, bits: Width) -> Coder:
    codec = Codec(rounding=rounding)
    return Coder(
        rounding,
        bits,
        lambda x: codec.encode(x, bits, SEED),
        lambda out, payload: codec.decode_add_(out, payload, bits),
    )


def measure_group(
    coders: Sequence[Coder], x: torch.Tensor, threads: int, rounds: int
) -> Iterator[CodecFigures]:
    """Time coders in turn with a copy and a read, so that a disturbance hits all of them alike."""
    target, accumulator = torch.empty_like(x), torch.zeros_like(x)
    errors = [_nmse(coder, x) for coder in coders]  # first: error feedback still owes nothing
    operations = [
        Operation("copy", lambda: target.copy_(x)),
        Operation("read", lambda: torch.sum(x)),
    ]
    for i, coder in enumerate(coders):
        operations += _operations(i, coder, x, accumulator)
    seconds = time_in_turn(operations, rounds)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for i, (coder, nmse) in enumerate(zip(coders, errors, strict=True)):
        yield _figures(coder, threads, x.nbytes, median, median[f"encode {i}"], median[f"decode {i}"], nmse)


def _operations(index: int, coder: Coder, x: torch.Tensor, accumulator: torch.Tensor) -> list[Operation]:
    payload = coder.encode(x)
    return [
        Operation(f"encode {index}", lambda: coder.encode(x)),
        Operation(f"decode {index}", lambda: coder.decode_add(accumulator, payload)),
    ]


def _figures(
    coder: Coder,
    threads: int,
    nbytes: int,
    median: dict[str, float],
    encode_seconds: float,
    decode_seconds: float,
    nmse: float,
) -> CodecFigures:
    copy, read = median["copy"], median["read"]
    return CodecFigures(
        coder=coder.name,
        bits=coder.bits,
        threads=threads,
        copy_gb_per_s=nbytes / copy / 1e9,
        read_gb_per_s=nbytes / read / 1e9,
        encode_gb_per_s=nbytes / encode_seconds / 1e9,
        encode_per_copy=copy / encode_seconds,
        encode_per_read=read / encode_seconds,
        decode_add_gb_per_s=nbytes / decode_seconds / 1e9,
        decode_add_per_copy=copy / decode_seconds,
        round_trip_per_copy=copy / (encode_seconds + decode_seconds),
        nmse=nmse,
    )


def time_in_turn(operations: Sequence[Operation], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of every operation in every round; each round runs all of them once. Warm-up rounds are not kept."""
    seconds: dict[str, list[float]] = {operation.name: [] for operation in operations}
    for round_number in range(-warm_up, rounds):
        for name, run in operations:
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if round_number >= 0:
                seconds[name].append(elapsed)
    return seconds


def _nmse(coder: Coder, x: torch.Tensor) -> float:
    decoded = torch.zeros_like(x)
    coder.decode_add(decoded, coder.encode(x))
    return float((decoded - x).square().sum(dtype=torch.float64) / x.square().sum(dtype=torch.float64))


def available_threads() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def num_threads(threads: int) -> Iterator[None]:
    """Let torch's kernels and ours use this many threads, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
