"""What a training iteration of a workload takes with plain DDP, and through the hook at every width."""

import dataclasses
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad
from mqgrad.costs import Costs
from mqgrad.trainers.workload import Workload
from mqgrad.widths import Width

from .bench_transport import Variant, combine_ranks, median, median_parts, scaled

_WARM_UP_STEPS = 2  # after a change of width: residuals are allocated, or sent in full
_NEVER = 10**9  # iterations per interval: no gradient figures are taken


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """One training iteration of the workload; as in :class:`mqgrad.experiments.bench_transport.CollectiveFigures`."""

    bits: Variant
    step_seconds: float
    per_plain: float
    """Seconds over those of plain DDP in the same round; below 1 is faster."""
    extra_seconds: float
    """Seconds beyond those of plain DDP in the same round; below 0 is faster."""
    encode_seconds: float
    wire_seconds: float
    """0 for plain DDP, which does not tell."""
    decode_seconds: float
    wire_bytes: float


def measure_steps(
    workload: Workload, *, widths: Sequence[Width], rounds: int, iterations: int
) -> list[StepFigures]:
    """Train with plain DDP and with the hook at each width in turn.

    The hook runs without a controller: the exchange of statistics, once per interval, is not in these figures.
    """
    replicas = {"plain": Replica(workload, hook=False), "hook": Replica(workload, hook=True)}
    variants: list[Variant] = [None, *widths]
    measured: list[dict[Variant, Costs]] = []
    for _ in range(rounds + 1):  # the first warms up, and DDP regroups its buckets
        measured.append({})
        for bits in variants:
            replica = replicas["plain" if bits is None else "hook"]
            measured[-1][bits] = replica.measure(bits, iterations)
    replicas["hook"].close()
    combined = combine_ranks(measured[1:])
    return [_step_figures(bits, combined[bits], combined[None]) for bits in variants]


class Replica:
    """A model in training on this rank, with the compression hook or without.

    Args:
        workload: what to train.
        hook: register the hook; else DDP averages by itself.
    """

    def __init__(self, workload: Workload, *, hook: bool) -> None:
        torch.manual_seed(0)  # the same initial weights on every rank
        model: nn.Module = workload.build_model()
        self._workload = workload
        self._ddp = DistributedDataParallel(model)
        self._optimizer = workload.build_optimizer(model)
        self._scheduler = workload.build_scheduler(self._optimizer)
        self._batches = workload.batches(dist.get_rank(), dist.get_world_size(), 0)
        self._state = mqgrad.CompressionState(interval=_NEVER) if hook else None
        if self._state is not None:
            self._ddp.register_comm_hook(self._state, mqgrad.compression_hook)

    def measure(self, bits: Variant, iterations: int) -> Costs:
        """Costs per iteration at one width, after a few iterations that are not counted."""
        if self._state is not None and bits is not None:
            self._state.set_width(bits)
        for _ in range(_WARM_UP_STEPS):
            self._step()
        dist.barrier()
        before = dataclasses.replace(self._state.totals) if self._state is not None else None
        start = time.perf_counter()
        for _ in range(iterations):
            self._step()
        seconds = time.perf_counter() - start
        costs = (
            self._state.totals.since(before) if self._state is not None and before is not None else Costs()
        )
        costs.step_seconds = seconds
        return scaled(costs, 1 / iterations)

    def _step(self) -> None:
        self._optimizer.zero_grad()
        loss = self._workload.loss(self._ddp, next(self._batches))
        loss.backward()
        self._optimizer.step()
        self._scheduler.step()
        if self._state is not None:
            self._state.step(loss)

    def close(self) -> None:
        """Stop the hook's communication thread."""
        if self._state is not None:
            self._state.close()


def _step_figures(bits: Variant, rounds: Sequence[Costs], plain: Sequence[Costs]) -> StepFigures:
    pairs = [(a.step_seconds, b.step_seconds) for a, b in zip(rounds, plain, strict=True)]
    return StepFigures(
        bits=bits,
        step_seconds=median(rounds, "step_seconds"),
        per_plain=statistics.median(ours / plains for ours, plains in pairs),
        extra_seconds=statistics.median(ours - plains for ours, plains in pairs),
        **median_parts(rounds),
    )
