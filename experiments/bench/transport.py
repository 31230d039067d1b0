"""What the compressed mean of a gradient costs on this link, width by width: encode, wire, decode."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
import torch._dynamo  # imported by the first DDP otherwise, when it keeps a process group that is there already
import torch.distributed as dist

from mqgrad.collectives.comm_thread import CommThread
from mqgrad.collectives.own_group import own_group
from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.collectives.transport import Transport
from mqgrad.collectives.wire_meter import DONE
from mqgrad.compressors import Compressor, Quantized
from mqgrad.compressors.base import BucketWork, Step
from mqgrad.costs import Costs
from mqgrad.hook.layout_table import LayoutTable
from mqgrad.trainers.clusters.virtual_ranks import VirtualBucket
from mqgrad.widths import Width

from .repetitions import Variant, rounds_within

TIMEOUT_SECONDS = 600.0
"""Of every wait for another rank."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveFigures:
    """One mean all-reduce. Seconds are those of the slowest rank, their parts and the bytes are means over ranks."""

    bits: Width
    """32 is the plain fp32 all-reduce; the others are all-to-all and all-gather."""
    seconds: float
    encode_seconds: float
    wire_seconds: float
    """In the two collectives, waiting for the other rank included."""
    decode_seconds: float
    wire_bytes: float
    """Sent by a rank."""
    rounds: int
    """That the medians are over."""

    @property
    def wire_mbit_per_s(self) -> float:
        """10⁶ bits that a rank sends per second on the wire."""
        return 8 * self.wire_bytes / self.wire_seconds / 1e6


def measure_collectives(
    *, mebibytes: float, widths: Sequence[Width], rounds: int, seconds: float
) -> list[CollectiveFigures]:
    """Average one gradient vector at each width in turn; for ``rounds`` at most, and for about ``seconds``."""
    transport = ProcessGroupTransport(own_group(None, TIMEOUT_SECONDS))
    thread = CommThread()  # as the hook has one
    coded, plain = Quantized(), Quantized(error_feedback=False)
    work = gradient_work(mebibytes, coded.bucket_size)
    measured: list[dict[Variant, Costs]] = []
    name = f"mean of {mebibytes:g} MiB"
    for iteration, turns in enumerate(
        rounds_within(seconds, name, widths, most=rounds)
    ):  # the first warms up
        measured.append({})
        for bits in turns:
            compressor = plain if bits == 32 else coded
            measured[-1][bits] = thread.run(partial(average, compressor, transport, [work], bits, iteration))
    combined = combine_ranks(measured[1:])
    thread.close()
    transport.close()
    return [_collective_figures(bits, combined[bits]) for bits in widths]


def average(
    compressor: Compressor, transport: Transport, works: Sequence[BucketWork], bits: Width, iteration: int
) -> Costs:
    """What averaging some buckets costs this rank; the ranks start together.

    Each bucket is begun before the one before it ends, as those that queue on the hook's communication thread.
    """
    costs = Costs()
    step = Step(transport, bits, iteration, seed=0, costs=costs, measure=False)
    dist.barrier()
    start = time.perf_counter()
    ending = DONE
    for work in works:
        begun = compressor.start_average_(work, step)
        ending.wait()
        ending = begun
    ending.wait()
    costs.step_seconds = time.perf_counter() - start
    transport.move_costs(costs)
    return costs


def gradient_work(mebibytes: float, bucket_size: int) -> BucketWork:
    """A DDP bucket of one parameter, a different Gaussian on every rank."""
    world_size = dist.get_world_size()
    buckets = -(-int(mebibytes * 2**20) // (4 * bucket_size * world_size)) * world_size
    numel = buckets * bucket_size
    generator = torch.Generator().manual_seed(dist.get_rank())
    bucket = cast(
        dist.GradBucket, VirtualBucket(0, True, [torch.empty(numel)])
    )  # only DDP can make a GradBucket
    bucket.buffer().normal_(generator=generator)
    layout, gradients = LayoutTable(bucket_size=bucket_size, world_size=world_size).of(bucket)
    return BucketWork(bucket.buffer(), gradients, layout)


def scaled(costs: Costs, factor: float) -> Costs:
    return Costs(**{name: value * factor for name, value in dataclasses.asdict(costs).items()})


def combine_ranks(rounds: Sequence[dict[Variant, Costs]]) -> dict[Variant, list[Costs]]:
    """Join the ranks' costs, round by round: step seconds of the slowest rank, means of everything else."""
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, list(rounds))
    combined: dict[Variant, list[Costs]] = {variant: [] for variant in rounds[0]}
    for ranks in zip(*by_rank, strict=True):
        for variant in combined:
            total = Costs()
            for rank in ranks:
                total.add(rank[variant])
            mean = scaled(total, 1 / len(ranks))
            mean.step_seconds = max(rank[variant].step_seconds for rank in ranks)
            combined[variant].append(mean)
    return combined


def median(rounds: Sequence[Costs], name: str) -> float:
    return statistics.median(getattr(costs, name) for costs in rounds)


def median_parts(rounds: Sequence[Costs]) -> dict[str, float]:
    names = ("encode_seconds", "wire_seconds", "decode_seconds", "wire_bytes")
    return {name: median(rounds, name) for name in names}


def _collective_figures(bits: Width, rounds: Sequence[Costs]) -> CollectiveFigures:
    return CollectiveFigures(
        bits=bits, seconds=median(rounds, "step_seconds"), **median_parts(rounds), rounds=len(rounds)
    )
