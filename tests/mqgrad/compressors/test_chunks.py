"""Buckets sent in chunks: the same means as in one piece, and the emulated link charges for the same bytes."""

import time
from typing import Any

import averages
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from mqgrad.codecs.rotation import RotationCodec
from mqgrad.codecs.sparse import SparseCodec
from mqgrad.codecs.uniform import UniformCodec
from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.compressors import plans, segments
from mqgrad.compressors.segments import Segment, chunked
from mqgrad.cuda_ext import IMPLEMENTATION
from mqgrad.trainers.link import LinkEmulation
from mqgrad.widths import Width


@pytest.mark.parametrize("bucket_size", [512, 4096])
@pytest.mark.parametrize("widths", [(4,), (1, 16, 2), (32, 1)])
def test_chunks_hold_every_scale_bucket_of_every_shard_once_and_in_order(
    bucket_size: int, widths: tuple[int, ...]
) -> None:
    each, numel = 299 * 4096, 299 * 4096 * len(widths)
    shards = [
        [Segment(slice(at + i * each, at + (i + 1) * each), bits) for i, bits in enumerate(widths)]
        for at in (0, numel)
    ]
    chunks = chunked(shards, bucket_size)
    assert len(chunks) > 2
    for r, expected in enumerate(shards):
        cut = [segment for chunk in chunks for segment in chunk[r]]
        assert _scale_buckets(cut, bucket_size) == _scale_buckets(expected, bucket_size)


def _scale_buckets(segments_of_shard: list[Segment], bucket_size: int) -> list[tuple[int, float]]:
    return [
        (start, segment.bits)
        for segment in segments_of_shard
        for start in range(segment.part.start, segment.part.stop, bucket_size)
    ]


def test_a_sparse_code_chooses_among_the_whole_shard() -> None:
    shards = [[Segment(slice(0, 2**24), 1 / 4)], [Segment(slice(2**24, 2**25), 1 / 4)]]
    assert chunked(shards, 512) == [shards]


@pytest.mark.parametrize(
    ("spec", "bits"),
    [
        ("quantized", 1),
        ("quantized", 4),
        ("quantized:rounding=stochastic", 3),
        ("quantized:rounding=stochastic", 16),
        ("quantized:rounding=stochastic,topology=star", 4),
    ],
)
def test_chunks_give_the_same_means_as_one_piece(spec: str, bits: int) -> None:
    """Scales, random numbers and residuals belong to scale buckets, wherever the cuts are."""

    def rank_main(rank: int):
        means, cuts = [], []
        chunked = plans.chunked
        plans.chunked = lambda *args: cuts.append(chunked(*args)) or cuts[-1]
        for chunk_bytes in (segments.CHUNK_BYTES, 64):
            segments.CHUNK_BYTES = chunk_bytes
            means.append([got.tobytes() for got, _ in averages.means(spec, bits, rank, iterations=4)[0]])
        assert len(cuts[0]) == 1 < len(cuts[-1])
        return means

    results = run_ranks(rank_main, 2)
    assert len({tuple(means) for whole_and_cut in results for means in whole_and_cut}) == 1


@pytest.mark.skipif(IMPLEMENTATION != "extension", reason="one op for several parts is the extension's")
@pytest.mark.parametrize(
    ("spec", "bits"),
    [("quantized", 1 / 4), ("quantized", 1), ("quantized", 4), ("qsgd", 3), ("ecq-sgd", 4), ("rotation", 2)],
)
def test_shards_that_are_coded_by_one_op_give_the_same_means(spec: str, bits: Width) -> None:
    def rank_main(rank: int) -> tuple[list[bytes], list[bytes], set[str]]:
        used = set()
        for codec in (UniformCodec, RotationCodec, SparseCodec):
            for name in ("encode_parts", "decode_parts_into_"):
                setattr(codec, name, noted(getattr(codec, name), name, used))
        together = [got.tobytes() for got, _ in averages.means(spec, bits, rank, iterations=3)[0]]
        for codec in (UniformCodec, RotationCodec, SparseCodec):
            codec.codes_parts = lambda *_: False
        alone = [got.tobytes() for got, _ in averages.means(spec, bits, rank, iterations=3)[0]]
        return together, alone, used

    def noted(method: Any, name: str, used: set[str]) -> Any:
        def call(*arguments: Any, **options: Any) -> None:
            used.add(name)
            method(*arguments, **options)

        return call

    for together, alone, used in run_ranks(rank_main, 3):
        assert together == alone
        assert used == {"encode_parts", "decode_parts_into_"}


def test_an_emulated_link_carries_pieces_one_after_another_and_their_latencies_at_once() -> None:
    """Two pieces of 50 kB at 8 Mbit/s are 100 ms; 80 ms of latency is added once, as both are under way."""

    def rank_main(rank: int) -> tuple[float, float, int]:
        link = LinkEmulation(mbit_per_s=8, latency_ms=80)
        transport = ProcessGroupTransport(dist.group.WORLD, link)
        payload = torch.zeros(100_000, dtype=torch.uint8)
        start = time.perf_counter()
        pending = [transport.start_all_to_all(payload, [50_000, 50_000]) for _ in range(2)]
        for each in pending:
            each.wait()
        return time.perf_counter() - start, transport.wire_seconds, transport.round_trips

    for seconds, wire_seconds, round_trips in run_ranks(rank_main, 2):
        assert seconds >= 0.18
        assert 0.17 < wire_seconds <= seconds
        assert round_trips == 1


def test_latencies_add_up_where_one_collective_is_awaited_before_the_next_starts() -> None:
    """As with buckets that overlap: a push is awaited while the pull of the bucket before is under way."""

    def rank_main(rank: int) -> int:
        transport = ProcessGroupTransport(dist.group.WORLD)
        payload = torch.zeros(100)
        under_way = transport.start_all_gather(payload)
        for _ in range(3):
            push = transport.start_all_gather(payload)
            push.wait()
            under_way, before = transport.start_all_gather(payload), under_way
            before.wait()
        under_way.wait()
        return transport.round_trips

    assert run_ranks(rank_main) == [4, 4]


def test_latency_is_learned_from_small_collectives_that_nothing_hides() -> None:
    def rank_main(rank: int) -> tuple[float, float]:
        transport = ProcessGroupTransport(dist.group.WORLD, LinkEmulation(mbit_per_s=8, latency_ms=40))
        row = torch.zeros(10)
        first, second = transport.start_all_gather(row), transport.start_all_gather(row)
        second.wait()
        first.wait()  # out of turn, when it has long arrived
        before = transport.latency_seconds
        transport.all_gather(row)
        return before, transport.latency_seconds

    for before, after in run_ranks(rank_main):
        assert before == 0
        assert after > 0.03


def test_an_emulated_link_is_full_duplex_for_the_server_of_a_star() -> None:
    """It answers one piece while it takes in the next; what goes the same way waits. 100 kB are 100 s here."""

    def rank_main(rank: int) -> list[float]:
        sleeps: list[float] = []
        transport = ProcessGroupTransport(dist.group.WORLD, LinkEmulation(mbit_per_s=0.008))
        time.sleep = sleeps.append
        piece = torch.zeros(100_000, dtype=torch.uint8)
        pushed, pulled = transport.start_gather(piece), transport.start_fan_out(piece)
        for pending in (pushed, pulled, transport.start_gather(piece), transport.start_all_gather(piece)):
            pending.wait()
        return sleeps

    for sleeps in run_ranks(rank_main, 2):
        assert sleeps == pytest.approx([100, 100, 200, 300], abs=30)


def test_a_large_bucket_has_larger_chunks_not_more() -> None:
    shards = [[Segment(slice(r * 2**26, (r + 1) * 2**26), 8)] for r in range(2)]
    chunks = chunked(shards, 512)
    assert len(chunks) == segments.MOST_CHUNKS
    assert {segment.numel for chunk in chunks for (segment,) in chunk} == {2**26 // segments.MOST_CHUNKS}
