"""In which order a bucket's chunks travel, and what is left behind where one of them fails."""

import concurrent.futures
import os
import time
from typing import Any

import models
import pytest
import torch
from layouts import layout_of
from ranks import run_ranks

import mqgrad
from mqgrad.collectives.wire_meter import Pending
from mqgrad.compressors import make_compressor, segments
from mqgrad.compressors.base import BucketWork, Step
from mqgrad.costs import Costs
from mqgrad.trainers.clusters.in_process import InProcessTransport, MeetingPoint


class LoggedTransport(InProcessTransport):
    """Writes down what is started."""

    def __init__(self, meeting_point: MeetingPoint, rank: int) -> None:
        super().__init__(meeting_point, rank)
        self.log: list[str] = []

    def start_all_to_all(self, *arguments: Any) -> Pending[torch.Tensor]:
        self._note("push")
        return super().start_all_to_all(*arguments)

    def start_joined_all_gather(self, *arguments: Any) -> Pending[torch.Tensor]:
        self._note("pull")
        return super().start_joined_all_gather(*arguments)

    def _note(self, way: str) -> None:
        self.log.append(f"{way} {sum(entry.startswith(way) for entry in self.log)}")


def test_three_chunks_are_pushed_before_the_first_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same order on both ranks, as NCCL demands; and two round trips, however many chunks there are."""
    monkeypatch.setattr(segments, "CHUNK_BYTES", 256)  # 512 elements at 4 bits
    meeting_point = MeetingPoint(2, timeout_seconds=60)

    def rank_main(rank: int) -> tuple[list[str], int]:
        compressor, gradient = make_compressor("quantized:topology=sharded"), torch.ones(5 * 2 * 512)
        layout = layout_of([gradient], bucket_size=512, world_size=2)
        transport = LoggedTransport(meeting_point, rank)
        work = BucketWork(gradient, [gradient], layout)
        compressor.start_average_(work, Step(transport, 4, 0, 7, Costs(), False)).wait()
        return transport.log, transport.round_trips

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        (log, round_trips), other = threads.map(rank_main, range(2))
    assert other == (log, round_trips)
    started = "push 0, push 1, push 2, pull 0, push 3, pull 1, push 4, pull 2, pull 3, pull 4"
    assert log == started.split(", ")
    assert round_trips == 2


def test_a_rank_that_fails_between_chunks_ends_the_run_of_all_and_leaves_nothing_behind() -> None:
    """Nor does what is under way hold the process group, whose threads would outlive the state."""

    def rank_main(rank: int) -> tuple[str, float, int]:
        segments.CHUNK_BYTES = 256
        first = mqgrad.CompressionState(mqgrad.FixedBits(4))
        models.backward(models.compressed_ddp(models.small_model(), first), rank, 0)
        first.close()
        threads = len(os.listdir("/proc/self/task"))  # with those that backward has started
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), timeout_seconds=5)
        ddp = models.compressed_ddp(models.small_model(), state)
        if rank == 0:
            break_second_encode(state)
        start, error = time.perf_counter(), ""
        try:
            models.backward(ddp, rank, 0)
        except RuntimeError as raised:
            error = str(raised)
        state.close()
        seconds = time.perf_counter() - start
        # The kernel forgets a thread a little after it has ended; of the other rank's some stay.
        deadline = time.monotonic() + (5 if rank == 0 else 0)
        while (left := len(os.listdir("/proc/self/task")) - threads) > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        return error, seconds, left

    (error, seconds, left), (other, other_seconds, _) = run_ranks(rank_main, 2)
    assert "the second is broken" in error
    assert other
    assert seconds < 10
    assert other_seconds < 25
    assert left <= 0


def break_second_encode(state: mqgrad.CompressionState) -> None:
    compressor = state._iteration._compressor
    encode_shards, calls = type(compressor).encode_shards, []

    def broken(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("the second is broken")
        return encode_shards(self, *arguments, **options)

    type(compressor).encode_shards = broken
