"""The part of the benchmark that takes several ranks: started here, or those of a torchrun job."""

import dataclasses
import datetime
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from mqgrad.checks import check_count, check_positive
from mqgrad.trainers.clusters.errors import WorkerError
from mqgrad.trainers.workloads.workload import make_workload
from mqgrad.widths import UNCODED, WIDTHS, Width, check_width

from .break_even import BreakEven, break_even_rates
from .steps import StepFigures, measure_steps
from .transport import TIMEOUT_SECONDS, CollectiveFigures, measure_collectives

_RANK_FAILED = (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException)
_TIMEOUT = datetime.timedelta(seconds=TIMEOUT_SECONDS)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TransportSettings:
    """What to measure."""

    workload: str = "digits-cnn"
    workload_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    mebibytes: float = 16.0
    """Of float32 gradient that the collective averages."""
    rounds: int = 9
    """Repetitions at most; each measures every width once, and figures are medians over them."""
    iterations: int = 10
    """Training iterations of one width in one round, at most."""
    seconds: float = 240.0
    """For the collective, and for the steps, after which they are not repeated again."""
    widths: tuple[Width, ...] = WIDTHS
    """32, of which the link's rate is taken, is measured in any case."""

    def __post_init__(self) -> None:
        check_count(rounds=self.rounds, iterations=self.iterations)
        check_positive(mebibytes=self.mebibytes, seconds=self.seconds)
        widths = sorted({*(check_width(bits) for bits in self.widths), UNCODED})
        object.__setattr__(self, "widths", tuple(widths))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TransportReport:
    """Everything that :func:`measure_on_rank` found."""

    world_size: int
    link: str
    workload: str
    parameters: int
    gradient_bytes: int
    """Of all of them, in their own types: what plain DDP averages."""
    settings: TransportSettings
    collectives: list[CollectiveFigures]
    steps: list[StepFigures]

    def break_even(self) -> list[BreakEven]:
        """Break-even rates of the coded widths."""
        (rate,) = [figures.wire_mbit_per_s for figures in self.collectives if figures.bits == UNCODED]
        return break_even_rates(
            self.steps,
            world_size=self.world_size,
            gradient_bytes=self.gradient_bytes,
            link_mbit_per_s=rate,
        )


def measure_locally(settings: TransportSettings, num_workers: int) -> TransportReport:
    """Start ranks on this machine, one process with one thread each, joined by Gloo over loopback.

    Raises:
        ValueError: an unknown workload or setting.
        WorkerError: a rank raised, or its process was killed.
    """
    make_workload(settings.workload, **settings.workload_settings)  # a mistake is found here
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (num_workers, settings, str(Path(folder, "rendezvous")), results)
        try:
            torch.multiprocessing.spawn(_local_rank, arguments, num_workers, daemon=True)
        except _RANK_FAILED as error:
            told = str(error).strip()
            raise WorkerError(error.error_index, "failed; run the benchmark again", told) from error
        return results.get()


def _local_rank(
    rank: int, world_size: int, settings: TransportSettings, rendezvous: str, results: Any
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)  # the ranks share one machine
    store = dist.FileStore(rendezvous, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
    report = measure_on_rank(settings, "loopback")
    if rank == 0:
        results.put(report)
    dist.destroy_process_group()


def measure_under_torchrun(settings: TransportSettings) -> TransportReport:
    """Measure on the ranks of the torchrun job that this process is part of; every rank calls it."""
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        return measure_on_rank(settings, "torchrun")
    finally:
        dist.destroy_process_group()


def measure_on_rank(settings: TransportSettings, link: str) -> TransportReport:
    """Measure on one rank of the default group; every rank calls it and gets the same report."""
    workload = make_workload(settings.workload, **settings.workload_settings)
    learned = [each for each in workload.build_model().parameters() if each.requires_grad]
    return TransportReport(
        world_size=dist.get_world_size(),
        link=link,
        workload=settings.workload,
        parameters=sum(each.numel() for each in learned),
        gradient_bytes=sum(each.nbytes for each in learned),
        settings=settings,
        collectives=measure_collectives(
            mebibytes=settings.mebibytes,
            widths=settings.widths,
            rounds=settings.rounds,
            seconds=settings.seconds,
        ),
        steps=measure_steps(
            workload,
            widths=settings.widths,
            rounds=settings.rounds,
            iterations=settings.iterations,
            seconds=settings.seconds,
        ),
    )
