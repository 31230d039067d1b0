"""Run after run in the same processes: starting them takes longer than most runs of a comparison."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from mqgrad.files import replace_file
from mqgrad.trainers.clusters.cluster import Cluster

from ..runs import RunRecord, RunSpec, run_training
from .training_clock import TrainingClock, clock_path


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest(RunSpec):
    """One run that a server is asked for, and where its record goes."""

    record: str
    """File that is written when training begins, with no point in it, and anew when it has ended. Beside it
    :class:`.TrainingClock` tells the run's seconds."""

    def to_line(self) -> str:
        """JSON, on one line."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def serve_runs(cluster: Cluster, lines: Iterable[str]) -> None:
    """Carry out the run of each line, until there is no other.

    Raises:
        WorkerError: a rank died or hung; the runs that are left need new processes.
    """
    for line in lines:
        _carry_out(cluster, RunRequest(**json.loads(line)))


def _carry_out(cluster: Cluster, request: RunRequest) -> None:
    def write(record: RunRecord) -> None:
        replace_file(Path(request.record), json.dumps(record.to_dict()) + "\n")

    clock = TrainingClock(clock_path(Path(request.record)))
    record = run_training(
        cluster,
        request,
        on_start=write,
        on_clock=lambda seconds, goes_on: clock.tell(seconds, goes_on=goes_on),
    )
    write(record)
