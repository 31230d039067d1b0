"""What of a bucket is coded together: where one width ends and the next begins, and what is sent at a time."""

from typing import NamedTuple

from ..layout import Layout
from ..widths import Width

CHUNK_BYTES = 2**17
"""To each rank, about. With four hosts on two cores half of it takes 0–7 % less time at 100 Mbit/s and 18–26 %
more at 1 Gbit/s, a quarter of it 5–15 % less and 30–60 % more (1–8 bits, 16 MiB, medians of 11 rounds). But what
takes this much is cut in two, so that one is on its way while the other is coded: at 1 bit 16 MiB take 13 % less time
at 100 Mbit/s then, and as long at 1 Gbit/s (medians of three calls of 15 rounds)."""

MOST_CHUNKS = 8
"""Of a bucket; then they are larger. Messages have a price on fast links: 16 bits of 16 MiB take 145 ms in 16 chunks
and 77 in 8 at 10 Gbit/s, 134 and 122 at 1 Gbit/s, 1254 and 1262 at 100 Mbit/s (medians of 9, 9 and 4 rounds)."""

CHUNKS_AHEAD = 2
"""So many are pushed behind a chunk before that one's mean is coded and sent back."""


class Segment(NamedTuple):
    """Consecutive scale buckets of one shard that are coded together."""

    part: slice
    """Elements of the coded vector."""
    bits: Width

    @property
    def numel(self) -> int:
        """Elements, padding included."""
        return int(self.part.stop - self.part.start)


def shard_segments(
    layout: Layout, bits: Width, parameter_bits: tuple[Width, ...] | None, *, in_shards: bool = True
) -> list[list[Segment]]:
    """The segments of each shard, as few as possible; one each where all parameters have the width ``bits``.

    Without shards the whole vector is one.

    The scale buckets after the last parameter, all zero, are coded at the narrowest width of the bucket.
    """
    shard_numel = layout.shard_numel if in_shards else layout.numel
    shards = [slice(start, start + shard_numel) for start in range(0, layout.numel, shard_numel)]
    if parameter_bits is None:
        return [[Segment(part, bits)] for part in shards]
    starts, widths = [*layout.offsets, layout.end], [*parameter_bits, min(parameter_bits)]
    stops = [*starts[1:], layout.numel]
    parameters = [Segment(slice(*ends), bits) for *ends, bits in zip(starts, stops, widths, strict=True)]
    return [_merged(_cut_all(parameters, part.start, shard_numel)) for part in shards]


def chunked(shards: list[list[Segment]], bucket_size: int) -> list[list[list[Segment]]]:
    """Cut shards of one length into chunks, each with its part of every shard, to be sent one after another.

    While some are on their way others are coded. And the flows of an all-to-all between many ranks stay abreast:
    in one piece they end unevenly, and leave links idle. A sparse code chooses among a whole shard and is not cut.
    """
    if any(each.bits < 1 for segments in shards for each in segments):
        return [shards]
    numel = sum(each.numel for each in shards[0])
    shard_bytes = max(sum(each.numel * each.bits for each in segments) / 8 for segments in shards)
    least = 2 if shard_bytes >= CHUNK_BYTES else 1
    count = min(MOST_CHUNKS, max(least, round(shard_bytes / CHUNK_BYTES)))
    step = -(-numel // (count * bucket_size)) * bucket_size
    return [
        [_cut_all(segments, segments[0].part.start + at, step) for segments in shards]
        for at in range(0, numel, step)
    ]


def _overlap(first: slice, second: slice) -> bool:
    return bool(max(first.start, second.start) < min(first.stop, second.stop))


def _cut_all(segments: list[Segment], start: int, numel: int) -> list[Segment]:
    """What lies in a part of the coded vector."""
    part = slice(start, start + numel)
    return [_cut(each, part) for each in segments if _overlap(each.part, part)]


def _cut(segment: Segment, part: slice) -> Segment:
    start, stop = max(segment.part.start, part.start), min(segment.part.stop, part.stop)
    return Segment(slice(start, stop), segment.bits)


def _merged(segments: list[Segment]) -> list[Segment]:
    merged = segments[:1]
    for segment in segments[1:]:
        if segment.bits == merged[-1].bits:
            merged[-1] = Segment(slice(merged[-1].part.start, segment.part.stop), segment.bits)
        else:
            merged.append(segment)
    return merged
