"""What is worked out once for a bucket and its widths: in which chunks it is sent, and what each is made of."""

import bisect
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from mqgrad import cuda_ext

from ..layout import Layout
from ..vector_codec import VectorCodec
from ..widths import Width
from .runs import Run, chunked, shard_runs

_PLANS = 16
"""That a layout keeps: with a width for every parameter, each decision may bring a new one."""


class Copies(NamedTuple):
    """What a chunk takes of the gradients: which pieces of them go to which of the coded vector."""

    gradients: list[int]
    vector: list[int]
    repeated: tuple[torch.Tensor, torch.Tensor]
    """int64 [K]: elements of the vector that continue a parameter, and those that they repeat."""
    zeroed: torch.Tensor
    """int64 [L]: elements that continue a parameter whose code has no use for copies."""


class Chunk(NamedTuple):
    """A part of every shard, a message each, sent at a time."""

    runs: list[list[Run]]
    """By shard."""
    pieces: list[list[int]]
    """Bytes by shard: of the runs' payloads, and of the checksum behind them, 0 where there is none."""
    lengths: list[int]
    """Bytes of the messages."""
    covered: list[int]
    """Of those, from the first one, how many the checksum is of; see :func:`_covered`."""
    copies: Copies
    place: int
    """An even number that no other chunk has: of its push; the next one is that of its pull."""

    @property
    def has_checksums(self) -> bool:
        """On the CPU, where there is something for them to cover."""
        return self.pieces[0][-1] > 0

    def payloads(self, shard: int, message: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Those of the runs of a shard, in its message [P] or in several versions of it [W, P]."""
        return message.split_with_sizes(self.pieces[shard], dim=-1)[:-1]


class Plan(NamedTuple):
    """To be left as it is: it serves every iteration."""

    chunks: list[Chunk]
    gradient_pieces: list[list[int]]
    """Elements of the pieces of each gradient, one behind the other."""
    vector_pieces: list[int]
    """Of those of the coded vector, some of which are of no gradient."""


class Piece(NamedTuple):
    """A part of the coded vector, to be copied at a time."""

    start: int
    stop: int
    parameter: int | None
    """Whose gradient it is; None between and behind parameters."""


def planned(
    layout: Layout,
    codec: VectorCodec,
    bits: Width,
    parameter_bits: tuple[Width, ...] | None,
    bucket_size: int,
) -> Plan:
    """The plan of a layout at a width, or at a width for each parameter."""
    key = (codec, bits, parameter_bits)
    if key not in layout.plans:
        if len(layout.plans) == _PLANS:
            layout.plans.clear()
        chunks = chunked(shard_runs(layout, bits, parameter_bits), bucket_size)
        widths = parameter_bits or (bits,) * len(layout.keys)
        repeats = [codec.repeats_padding(width) for width in widths]
        layout.plans[key] = _plan(layout, codec, chunks, repeats)
    plan: Plan = layout.plans[key]
    return plan


def _plan(layout: Layout, codec: VectorCodec, chunks: list[list[list[Run]]], repeats: list[bool]) -> Plan:
    step = sum(run.numel for run in chunks[0][0])
    pieces = list(_pieces(layout, step))
    copies = _copies(layout, step, pieces, repeats)
    gradient_pieces: list[list[int]] = [[] for _ in layout.keys]
    for piece in pieces:
        if piece.parameter is not None:
            gradient_pieces[piece.parameter].append(piece.stop - piece.start)
    return Plan(
        [_chunk(layout, codec, runs, copied) for runs, copied in zip(chunks, copies, strict=True)],
        gradient_pieces,
        [piece.stop - piece.start for piece in pieces],
    )


def _chunk(layout: Layout, codec: VectorCodec, shards: list[list[Run]], copies: Copies) -> Chunk:
    payloads = [[codec.payload_bytes(run.numel, run.bits) for run in runs] for runs in shards]
    covered = [_covered(runs, sizes) for runs, sizes in zip(shards, payloads, strict=True)]
    room = _checksum_bytes(layout.padding.device) if any(covered) else 0
    pieces = [[*sizes, room] for sizes in payloads]
    return Chunk(shards, pieces, list(map(sum, pieces)), covered, copies, 2 * shards[0][0].part.start)


def _checksum_bytes(device: torch.device) -> int:
    """Of each message. None on a GPU, where to look at a checksum is to wait until everything before it is done."""
    return cuda_ext.CHECKSUM_BYTES if device.type == "cpu" else 0


def _covered(runs: list[Run], sizes: list[int]) -> int:
    """What precedes the codes: scales and header, to read which costs nothing beside the codes.

    A changed code is off by twice its scale at most. All of a sparse payload, and of several runs.
    """
    if len(runs) > 1 or runs[0].bits < 1:
        return sum(sizes)
    code_bytes = -(-runs[0].numel * int(runs[0].bits) // 8)
    return max(0, sizes[0] - code_bytes)


def _pieces(layout: Layout, step: int) -> Iterator[Piece]:
    """The vector, cut where a parameter begins or ends, or a chunk of ``step`` elements of a shard does."""
    parameters = list(zip(layout.offsets, layout.numels, strict=True))
    cuts = {layout.numel, *itertools.chain(*((start, start + numel) for start, numel in parameters))}
    for shard in range(0, layout.numel, layout.shard_numel):
        cuts.update(range(shard, shard + layout.shard_numel, step))
    for start, stop in itertools.pairwise(sorted(cuts)):
        parameter = bisect.bisect_right(layout.offsets, start) - 1
        offset, numel = parameters[parameter]
        yield Piece(start, stop, parameter if start < offset + numel else None)


def _copies(layout: Layout, step: int, pieces: list[Piece], repeats: list[bool]) -> list[Copies]:
    """By chunk."""
    owners = torch.bucketize(layout.padding.cpu(), torch.tensor(layout.offsets), right=True) - 1
    is_repeated = torch.tensor(repeats)[owners].to(layout.padding.device)
    chunk_of_padding = layout.padding % layout.shard_numel // step
    copies = []
    for chunk in range(-(-layout.shard_numel // step)):
        repeated = (chunk_of_padding == chunk) & is_repeated
        copies.append(
            Copies(
                gradients=[],
                vector=[],
                repeated=(layout.padding[repeated], layout.padded_with[repeated]),
                zeroed=layout.padding[(chunk_of_padding == chunk) & ~is_repeated],
            )
        )
    of_gradients = (i for i, piece in enumerate(pieces) if piece.parameter is not None)
    for gradient, vector in enumerate(of_gradients):
        chunk = pieces[vector].start % layout.shard_numel // step
        copies[chunk].gradients.append(gradient)
        copies[chunk].vector.append(vector)
    return copies
