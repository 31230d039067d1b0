"""What a training iteration of a workload takes with plain DDP, and through the hook at every width."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad
from mqgrad.controllers import Controller
from mqgrad.costs import Costs
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.trainers.workloads.calls import endless_batches, scheduler_of, training_loss
from mqgrad.trainers.workloads.workload import Workload
from mqgrad.widths import Width

from .repetitions import Variant, iterations_within, rounds_within
from .transport import combine_ranks, median, median_parts, scaled

WARM_UP_STEPS = 2
"""Before those that count: after a change of width residuals are allocated, or sent in full."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """One training iteration of the workload; as in :class:`mqgrad.experiments.bench.transport.CollectiveFigures`."""

    bits: Variant
    step_seconds: float
    per_plain: float
    """Seconds over those of plain DDP in the same round; below 1 is faster."""
    per_plain_range: tuple[float, float]
    """The least and the most of any round."""
    extra_seconds: float
    """Seconds beyond those of plain DDP in the same round; below 0 is faster."""
    encode_seconds: float
    wire_seconds: float
    """0 for plain DDP, which does not tell."""
    decode_seconds: float
    wire_bytes: float
    rounds: int
    """That the medians are over."""
    iterations: int
    """That a round counts."""


def measure_steps(
    workload: Workload, *, widths: Sequence[Width], rounds: int, iterations: int, seconds: float
) -> list[StepFigures]:
    """Train with plain DDP and with the hook at each width in turn, as a controller's interval.

    The last iteration of an interval is not counted, nor what follows it: there gradient figures are taken and
    exchanged. A run does so in one of 5 to 100 iterations, and few may be counted here.

    Args:
        workload: what to train.
        widths: of the hook.
        rounds: at most; each has a turn of every width and of plain DDP.
        iterations: that a turn counts, at most.
        seconds: after which no more rounds are begun, but for the least number; long iterations are fewer in a turn.
    """
    variants: list[Variant] = [None, *widths]
    plain = Replica(workload, None)
    counted = iterations_within(
        seconds,
        iteration_seconds=plain.measure(1).step_seconds,
        turns=len(variants),
        uncounted=WARM_UP_STEPS + 1,
        most=iterations,
    )
    hook = Replica(workload, _Turns(widths, interval=WARM_UP_STEPS + counted + 1))
    measured: list[dict[Variant, Costs]] = []
    # In the first round, which warms up, DDP regroups its buckets.
    for turns in rounds_within(seconds, "training steps", variants, most=rounds):
        measured.append({})
        for bits in turns:
            replica = plain if bits is None else hook
            measured[-1][bits] = replica.measure(counted, bits)
            if replica is hook:
                hook.step()  # ends the interval
    hook.close()
    combined = combine_ranks(measured[1:])
    return [_step_figures(bits, combined[bits], combined[None], counted) for bits in variants]


class _Turns:
    """A controller under which every width has an interval, in turn, over and over."""

    def __init__(self, widths: Sequence[Width], interval: int) -> None:
        self.initial_bits = widths[0]
        self.interval = interval
        self._following = itertools.cycle([*widths[1:], widths[0]])

    def decide(self, statistics: IntervalStatistics) -> Width:
        return next(self._following)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Replica:
    """A model in training on this rank, with the compression hook or without.

    Args:
        workload: what to train.
        controller: chooses widths for the hook; None: DDP averages by itself.
        bucket_cap_mb: MiB of DDP's buckets; its own if None.
        process_group: DDP's, of all ranks; the default group if None.
    """

    def __init__(
        self,
        workload: Workload,
        controller: Controller | None,
        *,
        bucket_cap_mb: float | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        torch.manual_seed(0)  # the same initial weights on every rank
        model: nn.Module = workload.build_model()
        self._workload = workload
        self._ddp = DistributedDataParallel(model, process_group=process_group, bucket_cap_mb=bucket_cap_mb)
        self._optimizer = workload.build_optimizer(model)
        self._scheduler = scheduler_of(workload, self._optimizer)
        self._batches = endless_batches(workload, dist.get_rank(), dist.get_world_size(), 0)
        self._state = mqgrad.CompressionState(controller) if controller is not None else None
        if self._state is not None:
            self._ddp.register_comm_hook(self._state, mqgrad.compression_hook)

    def measure(self, iterations: int, bits: Variant = None) -> Costs:
        """Costs per iteration, after a few that are not counted. ``bits``: the width the hook has to be at."""
        if self._state is not None:
            self._state.mark()  # other replicas' turns are no part of this one's iterations
        for _ in range(WARM_UP_STEPS):
            self.step()
        dist.barrier()
        before = dataclasses.replace(self._state.totals) if self._state is not None else None
        start = time.perf_counter()
        for _ in range(iterations):
            self.step()
        seconds = time.perf_counter() - start
        costs = (
            self._state.totals.since(before) if self._state is not None and before is not None else Costs()
        )
        assert self._state is None or bits in (None, self._state.bits), (
            f"{self._state.bits} bits were in use, not {bits}"
        )
        costs.step_seconds = seconds
        return scaled(costs, 1 / iterations)

    def step(self) -> None:
        """One iteration that is not measured."""
        self._optimizer.zero_grad()
        loss = training_loss(self._workload, self._ddp, next(self._batches))
        loss.backward()
        self._optimizer.step()
        self._scheduler.step()
        if self._state is not None:
            self._state.step(loss)

    def close(self) -> None:
        """Stop the hook's communication thread."""
        if self._state is not None:
            self._state.close()


def _step_figures(
    bits: Variant, rounds: Sequence[Costs], plain: Sequence[Costs], iterations: int
) -> StepFigures:
    pairs = [(a.step_seconds, b.step_seconds) for a, b in zip(rounds, plain, strict=True)]
    ratios = [ours / plains for ours, plains in pairs]
    return StepFigures(
        bits=bits,
        step_seconds=median(rounds, "step_seconds"),
        per_plain=statistics.median(ratios),
        per_plain_range=(min(ratios), max(ratios)),
        extra_seconds=statistics.median(ours - plains for ours, plains in pairs),
        **median_parts(rounds),
        rounds=len(rounds),
        iterations=iterations,
    )
