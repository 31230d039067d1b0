"""One command on every host of a lab: schedule of rates, counters, one result."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mqgrad.files import replace_file
from mqgrad.run_folder import check_writable, only_process_in
from mqgrad.trainers.signals import caught_signals

from .follow import Rank0Output
from .job import HostResult, Job
from .lab import NetLab
from .link import LinkShape, RateChange

_POLL_SECONDS = 0.02


@dataclass(kw_only=True, slots=True)
class LabResult:
    """What became of a command on a lab; ``write`` makes it ``netlab.json``."""

    lab: str
    command: list[str]
    link: LinkShape
    tcp: str
    """The hosts' congestion control."""
    outcome: str
    """One line: ``ok``, or why not, naming the ranks."""
    status: int
    """Exit status: 0, the first failed host's own, 124 for the time limit, 128 + signal when interrupted."""
    seconds: float
    """From the start of the commands to the end of the last."""
    hosts: list[HostResult]
    rate_changes: list[RateChange] = field(default_factory=list)
    """The schedule, at the seconds at which its rates came into force."""

    def write(self, path: Path) -> None:
        """Write the result as JSON."""
        replace_file(path, json.dumps(asdict(self), indent=1) + "\n")


def run_on_new_lab(lab: NetLab, command: Sequence[str], logs: Path, **options: Any) -> LabResult:
    """Build a lab, run a command on it, and remove it, whatever happens; as ``run_lab`` otherwise.

    SIGINT, SIGTERM and SIGHUP stop the command and are reported in the result.
    """
    with caught_signals() as caught, lab:
        return run_lab(lab, command, logs, caught_signals=caught, **options)


def run_lab(
    lab: NetLab,
    command: Sequence[str],
    logs: Path,
    *,
    schedule: Iterable[RateChange] = (),
    time_limit_seconds: float | None = None,
    caught_signals: Sequence[int] = (),
) -> LabResult:
    """Run a command on every host of a lab at once, as torchrun would on as many machines.

    1. Start it on every host with torchrun's variables set.
    2. Until all have ended: change rates on schedule, look for a failure, the time limit or a signal, each of which
       stops the others within 10 seconds. Beside that, rank 0's output is copied to this process's own.
    3. Read the counters and write ``netlab.json`` beside the logs, ``rank0.stdout.log`` and so on.

    Args:
        lab: an open lab.
        command: program, as :func:`.find_program` finds it, and arguments; no shell is involved.
        logs: folder for logs, made if need be.
        schedule: rates and when they come into force; may have no end.
        time_limit_seconds: stop the command after this time; None: never.
        caught_signals: filled by a signal handler with the numbers of signals that ask to stop.

    Raises:
        NetLabError: the kernel refused a change of rate.
        OSError: the folder for logs cannot be written.
        ValueError: another process's command writes its logs there.
    """
    with contextlib.ExitStack() as stack:
        check_writable(logs)
        stack.enter_context(only_process_in(logs))
        for old in (logs / "netlab.json", *logs.glob("rank*.std*.log")):  # of another command
            old.unlink(missing_ok=True)
        before = lab.counters()
        started = time.monotonic()
        job = Job(lab, command, logs, stack)  # 1
        rates = RateSchedule(lab, schedule, lambda: time.monotonic() - started)
        stack.callback(Rank0Output(logs).end, caught_signals)
        try:
            while (stop := job.reason_to_stop(caught_signals, time_limit_seconds)) is None:  # 2
                rates.apply()
                time.sleep(_POLL_SECONDS)
        finally:
            job.stop()
        seconds = time.monotonic() - started
        after = lab.counters()
        result = LabResult(  # 3
            lab=lab.name,
            command=list(command),
            link=lab.link,
            tcp=lab.congestion_control,
            outcome=stop.outcome,
            status=stop.status,
            seconds=seconds,
            hosts=[job.host_result(rank, before[rank], after[rank]) for rank in range(lab.hosts)],
            rate_changes=rates.applied,
        )
        result.write(logs / "netlab.json")
    return result


class RateSchedule:
    """A schedule of rates that is carried out, in the seconds of a clock."""

    def __init__(self, lab: NetLab, schedule: Iterable[RateChange], clock: Callable[[], float]) -> None:
        self.applied: list[RateChange] = []
        self._lab = lab
        self._pending = iter(schedule)
        self._next = next(self._pending, None)
        self._clock = clock

    def apply(self) -> None:
        """Bring the next rate into force if it is due."""
        if self._next is None:
            return
        seconds = self._clock()
        if seconds >= self._next.seconds:
            self._lab.set_rate(self._next.rate_mbit_per_s)
            self.applied.append(RateChange(seconds, self._next.rate_mbit_per_s))
            self._next = next(self._pending, None)
