"""What is worked out once for a bucket and its widths: in which chunks it is sent, and what each is made of."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from mqgrad import cuda_ext

from ..codecs.vector_codec import VectorCodec
from ..layout import Layout
from ..widths import Width
from .segments import Segment, chunked, shard_segments

_PLANS = 16
"""That a layout keeps: with a width for every parameter, each decision may bring a new one."""

CodecOf = Callable[[Width], VectorCodec]
"""The codec of a width."""


class Chunk(NamedTuple):
    """A part of every shard, a message each, sent at a time."""

    segments: list[list[Segment]]
    """By shard."""
    pieces: list[list[int]]
    """Bytes by shard: of the segments' payloads, and of the checksum behind them, 0 on a GPU."""
    lengths: list[int]
    """Bytes of the messages."""
    covered: list[int]
    """Of those, from the first one, how many the checksum is of; see :func:`_covered`."""
    place: int
    """An even number that no other chunk has: of its push; the next one is that of its pull."""
    stride: int
    """Elements from a shard's segment to the next one's, where one op codes all shards: there are several of one
    segment each, all of one width and length. Else 0."""

    @property
    def has_checksums(self) -> bool:
        """On the CPU."""
        return self.pieces[0][-1] > 0

    @property
    def span(self) -> Segment:
        """From the first segment to the last, with what lies between them."""
        first, last = self.segments[0][0], self.segments[-1][-1]
        return Segment(slice(first.part.start, last.part.stop), first.bits)

    def rows(self, messages: torch.Tensor) -> torch.Tensor:
        """The payloads [W, P] of all shards, where there is a stride, in their joined messages."""
        return messages.view(len(self.lengths), -1)[:, : self.pieces[0][0]]

    def payloads(self, shard: int, message: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Those of the segments of a shard, in its message [P] or in several versions of it [W, P]."""
        return message.split_with_sizes(self.pieces[shard], dim=-1)[:-1]


def planned(
    layout: Layout,
    codec: CodecOf,
    bits: Width,
    parameter_bits: tuple[Width, ...] | None,
    bucket_size: int,
    *,
    in_shards: bool = True,
) -> list[Chunk]:
    """The chunks of a layout at a width, or at a width for each parameter; to be left as they are.

    Without shards all of it is one.
    """
    codecs = frozenset(map(codec, {bits} if parameter_bits is None else {*parameter_bits}))
    key = (codecs, bits, parameter_bits, in_shards)
    if key not in layout.plans:
        if len(layout.plans) == _PLANS:
            layout.plans.clear()
        device = layout.bucket_ids.device
        shards = chunked(shard_segments(layout, bits, parameter_bits, in_shards=in_shards), bucket_size)
        layout.plans[key] = [_chunk(codec, segments, device) for segments in shards]
    chunks: list[Chunk] = layout.plans[key]
    return chunks


def _chunk(codec: CodecOf, shards: list[list[Segment]], device: torch.device) -> Chunk:
    payloads = [[codec(each.bits).payload_bytes(each.numel) for each in segments] for segments in shards]
    covered = [_covered(segments, sizes) for segments, sizes in zip(shards, payloads, strict=True)]
    room = _checksum_bytes(device)
    pieces = [[*sizes, room] for sizes in payloads]
    place = 2 * shards[0][0].part.start
    return Chunk(shards, pieces, list(map(sum, pieces)), covered, place, _stride(codec, shards, device))


def _stride(codec: CodecOf, shards: list[list[Segment]], device: torch.device) -> int:
    """See :attr:`Chunk.stride`."""
    kinds = {tuple((segment.numel, segment.bits) for segment in segments) for segments in shards}
    first = shards[0][0]
    if len(shards) == 1 or len(kinds) > 1 or len(shards[0]) > 1:
        return 0
    if not codec(first.bits).codes_parts(device):
        return 0
    return shards[1][0].part.start - first.part.start


def _checksum_bytes(device: torch.device) -> int:
    """Of each message. None on a GPU, where to look at a checksum is to wait until everything before it is done."""
    return cuda_ext.CHECKSUM_BYTES if device.type == "cpu" else 0


def _covered(segments: list[Segment], sizes: list[int]) -> int:
    """What precedes the codes: scales and header, to read which costs nothing beside the codes.

    A changed code is off by twice its scale at most. All of a sparse payload, and of several segments. None at 16
    bits: there a checksum tells what it depends on alone.
    """
    if len(segments) > 1 or segments[0].bits < 1:
        return sum(sizes)
    code_bytes = -(-segments[0].numel * int(segments[0].bits) // 8)
    return max(0, sizes[0] - code_bytes)
