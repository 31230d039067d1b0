"""Segments of coded buckets: how shards are cut where parameters have widths of their own."""

import itertools

import pytest
import torch

from mqgrad.compressors import QSGD, plans
from mqgrad.compressors.coded import CodedMean
from mqgrad.compressors.onebit import OneBit
from mqgrad.compressors.plans import planned
from mqgrad.compressors.segments import CHUNK_BYTES, MOST_CHUNKS, Segment, chunked, shard_segments
from mqgrad.cuda_ext import CHECKSUM_BYTES
from mqgrad.layout import Layout
from mqgrad.widths import Width


def layout(counts: list[int], world_size: int) -> Layout:
    """Parameters of so many scale buckets of 8 elements."""
    shard = -(-sum(counts) // world_size)
    return Layout(
        keys=tuple(range(len(counts))),
        numels=tuple(8 * count for count in counts),
        offsets=tuple(8 * sum(counts[:i]) for i in range(len(counts))),
        numel=8 * shard * world_size,
        shard_numel=8 * shard,
        bucket_ids=torch.arange(shard * world_size),
        padding=torch.empty(0, dtype=torch.int64),
    )


def test_segments_are_cut_at_shards_and_joined_where_widths_are_equal() -> None:
    segments = shard_segments(layout([1, 3, 1, 2], world_size=2), 0, (2, 4, 4, 8))
    assert segments == [
        [Segment(slice(0, 8), 2), Segment(slice(8, 32), 4)],
        # the last holds no parameter
        [Segment(slice(32, 40), 4), Segment(slice(40, 56), 8), Segment(slice(56, 64), 2)],
    ]
    assert shard_segments(layout([1, 3], world_size=2), 4, None) == [
        [Segment(slice(0, 16), 4)],
        [Segment(slice(16, 32), 4)],
    ]


@pytest.mark.parametrize(
    ("shard_bytes", "count"),
    [
        (CHUNK_BYTES - 8, 1),
        (CHUNK_BYTES, 2),
        (2 * CHUNK_BYTES, 2),
        (3 * CHUNK_BYTES, 3),
        (99 * CHUNK_BYTES, MOST_CHUNKS),
    ],
)
def test_what_takes_a_chunk_or_more_is_sent_in_several(shard_bytes: int, count: int) -> None:
    shards = [[Segment(slice(start, start + shard_bytes), 8)] for start in (0, shard_bytes)]
    chunks = chunked(shards, bucket_size=8)
    assert len(chunks) == count
    assert [chunk[1][0].part.start - chunk[0][0].part.start for chunk in chunks] == [shard_bytes] * count


def test_segments_cover_every_element_once() -> None:
    for counts in itertools.product([1, 2, 5], repeat=3):
        for world_size in (1, 2, 4):
            shards = shard_segments(layout(list(counts), world_size), 0, (1, 32, 1))
            parts = [segment.part for segments in shards for segment in segments]
            elements = [i for part in parts for i in range(part.start, part.stop)]
            assert elements == list(range(layout(list(counts), world_size).numel))


@pytest.mark.parametrize(
    ("compressor", "bits", "covered"),
    [
        (QSGD(bucket_size=8), 4, 2 * 4),  # two scales
        (QSGD(bucket_size=8), 16, 0),
        (OneBit(bucket_size=8), 1, 2 * 8),  # two means for each of two buckets
        (QSGD(bucket_size=8), 1 / 2, None),
        (QSGD(bucket_size=8), (2, 4), None),
    ],
    ids=str,
)
def test_checksums_are_of_what_precedes_the_codes_or_of_all(
    compressor: CodedMean, bits: Width | tuple[Width, ...], covered: int | None
) -> None:
    """All of sparse payloads, and where a message has several."""
    each = bits if isinstance(bits, tuple) else None
    [chunk] = planned(layout([1, 3], world_size=2), compressor.codec, 0 if each else bits, each, 8)
    assert chunk.covered[0] == (sum(chunk.pieces[0][:-1]) if covered is None else covered)
    assert chunk.pieces[0][-1] == CHECKSUM_BYTES


def test_plans_are_worked_out_once_and_do_not_pile_up() -> None:
    both, codec = layout([1, 3], world_size=2), QSGD(bucket_size=8).codec
    first = planned(both, codec, 4, None, 8)
    assert planned(both, codec, 4, None, 8) is first
    assert [chunk.lengths for chunk in first] == [[codec(4).payload_bytes(16) + CHECKSUM_BYTES] * 2]
    for widths in itertools.product(range(1, 9), repeat=2):  # as decisions may bring them
        planned(both, codec, 0, widths, 8)
        assert len(both.plans) <= plans._PLANS
    again = planned(both, codec, 4, None, 8)
    assert [chunk[:3] for chunk in again] == [chunk[:3] for chunk in first]
