"""What of a bucket is coded together: where one width ends and the next begins, and what is sent at a time."""

from typing import NamedTuple

from ..layout import Layout
from ..widths import Width

CHUNK_BYTES = 2**17
"""To each rank, at least. With four hosts on two cores half of it takes 0–7 % less time at 100 Mbit/s and 18–26 %
more at 1 Gbit/s, a quarter of it 5–15 % less and 30–60 % more (1–8 bits, 16 MiB, medians of 11 rounds)."""

MOST_CHUNKS = 8
"""Of a bucket; then they are larger. Messages have a price on fast links: 16 bits of 16 MiB take 145 ms in 16 chunks
and 77 in 8 at 10 Gbit/s, 134 and 122 at 1 Gbit/s, 1254 and 1262 at 100 Mbit/s (medians of 9, 9 and 4 rounds)."""

CHUNKS_AHEAD = 2
"""So many are pushed behind a chunk before that one's mean is coded and sent back."""


class Run(NamedTuple):
    """Consecutive scale buckets of one shard that are coded together."""

    part: slice
    """Elements of the coded vector."""
    bits: Width

    @property
    def numel(self) -> int:
        """Elements, padding included."""
        return int(self.part.stop - self.part.start)


def shard_runs(
    layout: Layout, bits: Width, parameter_bits: tuple[Width, ...] | None, *, in_shards: bool = True
) -> list[list[Run]]:
    """The runs of each shard, as few as possible; one each where all parameters have the width ``bits``.

    Without shards the whole vector is one.

    The scale buckets after the last parameter, all zero, are coded at the narrowest width of the bucket.
    """
    shard_numel = layout.shard_numel if in_shards else layout.numel
    shards = [slice(start, start + shard_numel) for start in range(0, layout.numel, shard_numel)]
    if parameter_bits is None:
        return [[Run(part, bits)] for part in shards]
    starts, widths = [*layout.offsets, layout.end], [*parameter_bits, min(parameter_bits)]
    stops = [*starts[1:], layout.numel]
    parameters = [Run(slice(*ends), bits) for *ends, bits in zip(starts, stops, widths, strict=True)]
    return [_merged(_cut_all(parameters, part.start, shard_numel)) for part in shards]


def chunked(shards: list[list[Run]], bucket_size: int) -> list[list[list[Run]]]:
    """Cut shards of one length into chunks, each with its part of every shard, to be sent one after another.

    While some are on their way others are coded. And the flows of an all-to-all between many ranks stay abreast:
    in one piece they end unevenly, and leave links idle. A sparse code chooses among a whole shard and is not cut.
    """
    if any(run.bits < 1 for runs in shards for run in runs):
        return [shards]
    numel = sum(run.numel for run in shards[0])
    shard_bytes = max(sum(run.numel * run.bits for run in runs) / 8 for runs in shards)
    count = min(MOST_CHUNKS, max(1, round(shard_bytes / CHUNK_BYTES)))
    step = -(-numel // (count * bucket_size)) * bucket_size
    return [
        [_cut_all(runs, runs[0].part.start + at, step) for runs in shards] for at in range(0, numel, step)
    ]


def _overlap(first: slice, second: slice) -> bool:
    return bool(max(first.start, second.start) < min(first.stop, second.stop))


def _cut_all(runs: list[Run], start: int, numel: int) -> list[Run]:
    """What lies in a part of the coded vector."""
    part = slice(start, start + numel)
    return [_cut(run, part) for run in runs if _overlap(run.part, part)]


def _cut(run: Run, part: slice) -> Run:
    return Run(slice(max(run.part.start, part.start), min(run.part.stop, part.stop)), run.bits)


def _merged(runs: list[Run]) -> list[Run]:
    merged = runs[:1]
    for run in runs[1:]:
        if run.bits == merged[-1].bits:
            merged[-1] = Run(slice(merged[-1].part.start, run.part.stop), run.bits)
        else:
            merged.append(run)
    return merged
