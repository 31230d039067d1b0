"""Buckets that overlap with one another: the same collectives in the same order, the same means, and failures."""

import threading
import time
from typing import Any

import models
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

import mqgrad
from mqgrad.collectives.own_group import own_group
from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.collectives.wire_meter import Pending
from mqgrad.compressors import segments
from mqgrad.compressors.base import BucketWork, Step

SPECS = [
    ("quantized", 2),
    ("quantized", 4),
    ("quantized:rounding=stochastic", 3),
    ("quantized:topology=sharded", 4),
    ("quantized:topology=sharded", 1),
    ("quantized:topology=star", 8),
    ("onebit", 1),
    ("minmax:min_numel=100", 4),
    ("quantized", 32),
]


class LoggedTransport(ProcessGroupTransport):
    """Writes down what is started, with its bytes, and what is waited for."""

    def __init__(self) -> None:
        super().__init__(own_group(None, 10))
        self.log: list[str] = []

    def _start(
        self, collective: Any, result: Any, wire_bytes: float, *args: Any, **ways: Any
    ) -> Pending[Any]:
        name = f"{len(self.starts())}: {wire_bytes} bytes"
        self.log.append(f"start {name}")
        pending = super()._start(collective, result, wire_bytes, *args, **ways)
        return Pending(lambda: self.log.append(f"wait {name}")).then(lambda _: pending.wait())

    def starts(self) -> list[str]:
        return [line for line in self.log if line.startswith("start")]


class Gathered:
    """A hook that lets all buckets of an iteration queue up, or one end before backward goes on to the next."""

    def __init__(self, state: mqgrad.CompressionState, *, are_queued: bool) -> None:
        self._state, self._are_queued = state, are_queued
        self._complete = threading.Event()
        self.buckets = 0

    def hold(self) -> None:
        self.buckets = 0
        self._complete.clear()
        if self._are_queued:
            self._state._thread.post(lambda: self._complete.wait(10))

    def reduce(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = self._state.reduce_bucket(bucket)
        self.buckets += 1
        if bucket.is_last():
            self._complete.set()
        elif not self._are_queued:
            self._state.drain()
        return future


def _run(
    compressor: str | mqgrad.Compressor, bits: int, *, are_queued: bool, iterations: int = 3
) -> tuple[list[bytes], LoggedTransport, int]:
    """The means of some iterations, what was sent, and the buckets of the last."""
    transport, rank = LoggedTransport(), dist.get_rank()
    state = mqgrad.CompressionState(transport=transport, compressor=compressor)
    state.set_width(bits)
    model = models.small_model(layers=5)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    hook = Gathered(state, are_queued=are_queued)
    ddp.register_comm_hook(None, hook.reduce)
    means = []
    try:
        for iteration in range(iterations):
            model.zero_grad()
            hook.hold()
            models.backward(ddp, rank, iteration)
            means.append(models.gradient_of(model).numpy().tobytes())
    finally:
        state.close()
    return means, transport, hook.buckets


@pytest.mark.parametrize(("spec", "bits"), SPECS)
def test_overlapping_buckets_give_the_same_bytes_as_one_after_another(spec: str, bits: int) -> None:
    """On rank 0 the next bucket is always there, rank 1 ends each before it: nothing depends on that."""

    def rank_main(rank: int) -> tuple[list[bytes], list[bytes], list[str], int]:
        segments.CHUNK_BYTES = 64
        alone, _, _ = _run(spec, bits, are_queued=False)
        means, transport, buckets = _run(spec, bits, are_queued=rank == 0)
        return alone, means, transport.starts(), buckets

    first, second = run_ranks(rank_main)
    assert first[3] == second[3] > 2
    assert first[:2] == second[:2]
    assert first[0] == first[1]
    assert len(first[2]) == len(second[2])
    assert first[2] == second[2] or "star" in spec  # where rank 0 sends other bytes, as the server


def test_the_next_bucket_is_pushed_before_the_pull_of_the_former_is_waited_for() -> None:
    def rank_main(rank: int) -> tuple[list[str], int]:
        _, transport, buckets = _run("quantized:topology=sharded", 4, are_queued=rank == 0)
        return [line.split(":")[0] for line in transport.log], buckets

    (queued, buckets), (alone, _) = run_ranks(rank_main)
    assert len(queued) == len(alone)
    check = len(queued) // 2 - (1 + 2 * buckets)  # the collective that opens the last iteration
    for bucket in range(buckets - 1):
        pull, next_push = check + 2 + 2 * bucket, check + 3 + 2 * bucket
        assert queued.index(f"start {pull}") < queued.index(f"start {next_push}")
        assert queued.index(f"start {next_push}") < queued.index(f"wait {pull}")
        assert alone.index(f"wait {pull}") < alone.index(f"start {next_push}")


class BreaksAtTheSecond(mqgrad.Quantized):
    """Has nothing to send of the second bucket. In the first iteration DDP has one."""

    begun = 0

    def start_average_(self, work: BucketWork, step: Step) -> Pending[None]:
        self.begun += step.iteration
        if self.begun == 2 and step.transport.rank == 0:
            raise ValueError("the second bucket is broken")
        return super().start_average_(work, step)


@pytest.mark.parametrize("are_queued", [True, False])
def test_a_failure_beside_another_bucket_ends_backward_on_every_rank(are_queued: bool) -> None:
    def rank_main(rank: int) -> tuple[str, float]:
        start = time.perf_counter()
        try:
            _run(BreaksAtTheSecond(), 4, are_queued=are_queued)
        except Exception as error:
            return str(error), time.perf_counter() - start
        return "", 0.0

    broken, other = run_ranks(rank_main)
    assert "the second bucket is broken" in broken[0]
    assert other[0]
    assert max(broken[1], other[1]) < 25  # the group's 10 seconds, and what starting takes
