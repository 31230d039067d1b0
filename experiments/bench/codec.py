"""How fast the codec is on this machine, beside a copy and a read of the same floats, and beside other codecs."""

import ctypes
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from mqgrad.trainers.threads import torch_threads
from mqgrad.widths import Width

from ..provenance import available_cores
from .coders import SEED, Coder, Skipped, our_coders

MEAN_OF = 4  # payloads


class Operation(NamedTuple):
    """Something that is timed, in turn with others."""

    name: str
    run: Callable[[], object]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CodecFigures:
    """Speed and error of one coder. GB/s are 10⁹ bytes of float32 input (output for decoding) a second.

    ``…_per_copy`` is how many times as fast as a copy of the same floats, by the faster of libc's ``memmove`` and
    torch's ``copy_``; ``encode_per_read`` as ``torch.sum`` over them. All are measured in the same rounds; 1 is
    equal, more is faster.
    """

    coder: str
    bits: Width
    threads: int
    copy_gb_per_s: float
    """The faster of the next two."""
    memmove_gb_per_s: float
    """libc's, on one thread whatever ``threads`` is."""
    torch_copy_gb_per_s: float
    read_gb_per_s: float
    encode_gb_per_s: float
    encode_per_copy: float
    encode_per_read: float
    decode_add_gb_per_s: float
    decode_add_per_copy: float
    round_trip_per_copy: float
    """One copy's seconds over those of encode and decode-and-add together."""
    mean_gb_per_s: float | None
    """Encoding the mean of 4 payloads, with feedback where the coder has it; None if it cannot."""
    nmse: float
    """‖Q(x) − x‖² / ‖x‖² on Gaussian x; a mean over calls where they differ."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CodecReport:
    """Everything that :func:`measure_codec` found."""

    mebibytes: float
    """Of float32 coded at a time."""
    rounds: int
    figures: list[CodecFigures]
    """Ours."""
    peers: list[CodecFigures]
    skipped: list[Skipped]
    notes: list[str]
    """On how to compare."""


PeerFinder = Callable[[int, int], tuple[list[Coder], list[Skipped]]]
"""Peers for a number of elements and of threads."""


def measure_codec(
    find_peers: PeerFinder,
    *,
    mebibytes: float = 64.0,
    rounds: int = 7,
    widths: Sequence[Width] = (1 / 64, 1 / 8, 1 / 2, *range(1, 9), 16),
    thread_counts: Sequence[int] | None = None,
) -> CodecReport:
    """Measure our codec at every width and the peers, on a Gaussian vector.

    Args:
        find_peers: :func:`mqgrad.experiments.bench.peers.find_peers`.
        mebibytes: of float32 coded at a time; below the size of the last cache, a copy is no measure of memory.
        rounds: timed repetitions; figures are medians over them.
        widths: of our codec, in bits.
        thread_counts: one, and all that the process may use, by default.

    Raises:
        ValueError: a width that the codec does not know.
    """
    x = torch.randn(int(mebibytes * 2**20) // 4, generator=torch.Generator().manual_seed(SEED))
    figures: list[CodecFigures] = []
    peers: list[CodecFigures] = []
    skipped: list[Skipped] = []
    notes: dict[str, None] = {}
    for threads in thread_counts or sorted({1, available_cores()}):
        with torch_threads(threads):
            for bits in widths:
                figures += measure_group(our_coders(bits, x.numel()), x, threads, rounds)
            found, skipped = find_peers(x.numel(), threads)
            notes.update(dict.fromkeys(peer.note for peer in found if peer.note))
            for peer in found:
                peers += measure_group([peer], x, threads, rounds)
    return CodecReport(
        mebibytes=mebibytes,
        rounds=rounds,
        figures=figures,
        peers=peers,
        skipped=skipped,
        notes=list(notes),
    )


def measure_group(
    coders: Sequence[Coder], x: torch.Tensor, threads: int, rounds: int
) -> Iterator[CodecFigures]:
    """Time coders in turn with a copy and a read, so that a disturbance hits all of them alike."""
    target, accumulator = torch.empty_like(x), torch.zeros_like(x)
    errors = [_nmse(coder, x) for coder in coders]  # first: error feedback still owes nothing
    operations = [
        Operation("memmove", lambda: ctypes.memmove(target.data_ptr(), x.data_ptr(), x.nbytes)),
        Operation("torch copy", lambda: target.copy_(x)),
        Operation("read", lambda: torch.sum(x)),
    ]
    for i, coder in enumerate(coders):
        operations += _operations(i, coder, x, accumulator)
    seconds = time_in_turn(operations, rounds)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for i, (coder, nmse) in enumerate(zip(coders, errors, strict=True)):
        yield _figures(i, coder, threads, x.nbytes, median, nmse)


def _operations(index: int, coder: Coder, x: torch.Tensor, accumulator: torch.Tensor) -> list[Operation]:
    payload = coder.encode(x)
    operations = [
        Operation(f"encode {index}", lambda: coder.encode(x)),
        Operation(f"decode {index}", lambda: coder.decode_add(accumulator, payload)),
    ]
    if (encode_mean := coder.encode_mean) is not None:
        rolled = (x.roll(i * x.numel() // MEAN_OF) for i in range(MEAN_OF))
        payloads = torch.stack([coder.encode(each).clone() for each in rolled])
        operations.append(Operation(f"mean {index}", lambda: encode_mean(payloads)))
    return operations


def _figures(
    index: int, coder: Coder, threads: int, nbytes: int, median: dict[str, float], nmse: float
) -> CodecFigures:
    copy, read = min(median["memmove"], median["torch copy"]), median["read"]
    encode_seconds, decode_seconds = median[f"encode {index}"], median[f"decode {index}"]
    mean_seconds = median.get(f"mean {index}")
    return CodecFigures(
        coder=coder.name,
        bits=coder.bits,
        threads=threads,
        copy_gb_per_s=nbytes / copy / 1e9,
        memmove_gb_per_s=nbytes / median["memmove"] / 1e9,
        torch_copy_gb_per_s=nbytes / median["torch copy"] / 1e9,
        read_gb_per_s=nbytes / read / 1e9,
        encode_gb_per_s=nbytes / encode_seconds / 1e9,
        encode_per_copy=copy / encode_seconds,
        encode_per_read=read / encode_seconds,
        decode_add_gb_per_s=nbytes / decode_seconds / 1e9,
        decode_add_per_copy=copy / decode_seconds,
        round_trip_per_copy=copy / (encode_seconds + decode_seconds),
        mean_gb_per_s=None if mean_seconds is None else nbytes / mean_seconds / 1e9,
        nmse=nmse,
    )


def time_in_turn(operations: Sequence[Operation], rounds: int) -> dict[str, list[float]]:
    """Seconds of every operation in every round; each round runs all of them once. A first one is not kept."""
    seconds: dict[str, list[float]] = {operation.name: [] for operation in operations}
    for round_number in range(-1, rounds):
        for name, run in operations:
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if round_number >= 0:
                seconds[name].append(elapsed)
    return seconds


def _nmse(coder: Coder, x: torch.Tensor) -> float:
    error = 0.0
    for _ in range(coder.error_calls):
        decoded = torch.zeros_like(x)
        coder.decode_add(decoded, coder.encode(x))
        error += float(decoded.sub_(x).square().sum(dtype=torch.float64))
    return error / coder.error_calls / float(x.square().sum(dtype=torch.float64))
