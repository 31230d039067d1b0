"""The runs of a sweep: each asked for, followed, and made into a row of results."""

import contextlib
import datetime
import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mqgrad.trainers.signals import stopped_by

from ..machine_load import OthersLoad
from ..netlab.iproute import NetLabError
from ..netlab.job import find_program
from ..provenance import git_revision
from .axes import Link, Run, System
from .config import SweepConfig
from .result import FAILED, REASON_CHARACTERS, Ending, RunResult, result_of
from .run_server import RunRequest
from .server import LabServer, LocalServer, Server, remove_stale_lab

_POLL_SECONDS = 0.02
_SERVING = "serving"
_RECORD = "record.json"
_LONGEST_NAME = 200  # a file system takes 255, and a number may follow
_LAB_FAILURES = 4  # in a row: then the kernel will not build another


class Place(NamedTuple):
    """Where and how the runs of a sweep are carried out."""

    logs: Path
    """Folder for the output of the processes at work and of those that failed."""
    lab_name: str
    program: Sequence[str]
    """The command, up to its options: ``mqgrad serve-runs``."""
    caught: Sequence[int]
    """Numbers of signals that ask to stop, filled by a handler."""


def default_program() -> list[str]:
    """``mqgrad serve-runs`` of this Python's own environment."""
    beside = Path(sys.executable).with_name("mqgrad")
    return [str(beside) if beside.exists() else find_program("mqgrad"), "serve-runs"]


class SweepRunner:
    """Carries out runs in processes that live as long as workload, settings and link stay the same, and no run fails.

    Close it by leaving its ``with`` block: then no process is left.
    """

    def __init__(self, config: SweepConfig, place: Place) -> None:
        self._config = config
        self._place = place
        # Its own: processes of a sweep that was killed may go on writing to theirs for a while.
        self._logs = place.logs / f"{_SERVING}-{os.getpid()}"
        self._server: Server | None = None
        self._had_lab = False
        self._lab_failures = 0
        self._options: list[str] = []
        self._link = ""
        self._revision: str | None = None
        self._sent_before: list[int] = []

    def __enter__(self) -> "SweepRunner":
        for left in self._place.logs.glob(f"{_SERVING}-[0-9]*"):
            shutil.rmtree(left, ignore_errors=True)  # by a sweep that was killed
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            with contextlib.suppress(NetLabError):  # a lab that is left is removed next
                self._end_server(at_once=bool(self._place.caught))
            if self._had_lab:
                remove_stale_lab(self._place.lab_name)
        finally:
            shutil.rmtree(self._logs, ignore_errors=True)

    def carry_out(self, run: Run) -> RunResult:
        """Carry out one run, whatever becomes of it. The logs of every attempt that crashed or timed out are kept.

        Processes close a run when they are asked for the next one. If they fail before that one trains, either may be
        to blame: it is asked for again of new ones, and the row tells why. So it is where there are no processes,
        because the kernel refused to take the last lab down or to build another.

        Raises:
            KeyboardInterrupt: SIGINT asked to stop.
            SystemExit: another signal did.
            NetLabError: no lab can be built here: not even the first one was, or several in a row were not.
        """
        started, others, date = time.monotonic(), OthersLoad(), datetime.datetime.now(datetime.timezone.utc)
        limit = self._config.limit_of(run)
        record, kept = self._logs / _RECORD, self._server
        ending, retried = self._attempt(run, record, limit), ""
        if ending.outcome in FAILED and self._server in (None, kept) and not record.exists():
            retried = ending.reason
            self._keep_logs(run)
            started, others = time.monotonic(), OthersLoad()
            ending = self._attempt(run, record, limit)
        if self._place.caught:
            raise stopped_by(self._place.caught[0])
        result = result_of(
            run,
            ending,
            request_of(run, self._config, record),
            started=date.isoformat(timespec="seconds"),
            wall_seconds=round(time.monotonic() - started, 2),
            others_cores=None if (cores := others.cores()) is None else round(cores, 2),
            revision=self._revision,
            interface_bytes=self._sent_in_run(),
            retried=retried,
        )
        if result.outcome in FAILED:
            self._keep_logs(run)
        return result

    def _keep_logs(self, run: Run) -> None:
        """End the processes; their output stays, beside that of earlier attempts."""
        with contextlib.suppress(NetLabError):  # the lab is removed before another is built, and at the end
            self._end_server(at_once=True)
        self._logs.replace(_unused(self._place.logs / _folder_name(run)))

    def _attempt(self, run: Run, record: Path, limit: float) -> Ending:
        deadline = time.monotonic() + limit
        record.unlink(missing_ok=True)
        self._sent_before = []
        try:
            self._prepare_server(run)
            ending = self._follow(request_of(run, self._config, record), deadline)
            self._lab_failures = 0
        except NetLabError as error:
            self._lab_failures += 1
            if not self._had_lab or self._lab_failures == _LAB_FAILURES:
                raise
            return Ending("crashed", f"the lab failed: {' '.join(str(error).split())}"[:REASON_CHARACTERS])
        if ending.outcome == "timed out":
            return Ending("timed out", f"time limit of {limit:g} s")
        return ending

    def _follow(self, request: RunRequest, deadline: float) -> Ending:
        """Until the run's record is complete, its processes have ended, a signal came or the time is spent."""
        assert self._server is not None
        training = False
        self._server.request(request)
        while not self._place.caught:
            ending, outcome = self._server.ending(), _outcome(Path(request.record))  # in this order
            if outcome == "running" and not training:  # else what was sent before is not known
                training = True
                self._sent_before = self._server.sent_bytes()
            if outcome not in (None, "running"):
                return Ending("ok", "")
            if ending is not None:
                return ending
            if time.monotonic() > deadline:
                return Ending("timed out", "")
            time.sleep(_POLL_SECONDS)
        return Ending("stopped", "")

    def _sent_in_run(self) -> list[int]:
        sent = self._server.sent_bytes() if self._server is not None else []
        return [now - before for now, before in zip(sent, self._sent_before, strict=False)]

    def _prepare_server(self, run: Run) -> None:
        """Keep the processes if they serve this run, else start others."""
        options = server_options(run, self._config)
        alive = self._server is not None and self._server.ending() is None
        if alive and (self._options, self._link) == (options, run.link):
            return
        self._end_server(at_once=False)
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs.mkdir(parents=True)
        self._options, self._link, self._revision = options, run.link, git_revision()
        command, link, place = [*self._place.program, *options], Link.parse(run.link), self._place
        if link.emulated:
            self._server = LocalServer(command, self._logs)
        else:
            self._server = LabServer(command, link.rates, self._config.hosts, self._logs, place.lab_name)
            self._had_lab = True

    def _end_server(self, *, at_once: bool) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close(at_once=at_once)


def server_options(run: Run, config: SweepConfig) -> list[str]:
    """The options of ``mqgrad serve-runs``."""
    options = ["--workload", run.workload]
    for name, value in config.workload_settings(run.workload, run.optimizer, run.system).items():
        options += ["--set", f"{name}={json.dumps(value)}"]
    if Link.parse(run.link).emulated:
        options += ["--num-workers", str(config.hosts)]
    # What ends a run that takes too long is its own limit: an evaluation may take as much.
    return [*options, "--timeout-seconds", f"{config.limit_of(run):g}"]


def request_of(run: Run, config: SweepConfig, record: Path) -> RunRequest:
    """What the processes are asked for."""
    system, link = System.parse(run.system), Link.parse(run.link)
    return RunRequest(
        seed=run.seed,
        record=str(record),
        controller=system.controller_of_run(),
        compressor=system.compressor,
        method=system.method,
        link=emulation(link) if link.emulated else None,
        iterations=config.iterations,
        budget_seconds=config.budget_of(run.workload, run.link),
    )


def emulation(link: Link) -> str | None:
    """The link as :func:`mqgrad.trainers.link.parse_emulation` reads it; None if it has no rate."""
    if link.rates.mbit_per_s == (None,):
        return None
    rates = "/".join(f"{rate:.15g}" for rate in link.rates.mbit_per_s if rate is not None)
    return rates if len(link.rates.mbit_per_s) == 1 else f"{rates}@{link.rates.switch_seconds:.15g}"


def _outcome(record: Path) -> str | None:
    """How a run stands according to its record; None while there is none."""
    with contextlib.suppress(OSError, ValueError):
        outcome: str | None = json.loads(record.read_text()).get("outcome")
        return outcome
    return None


def _folder_name(run: Run) -> str:
    """As the run is called; without the middle of a name that is too long for a file system."""
    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", "-".join(map(str, run)))
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}_{name[-half:]}"


def _unused(folder: Path) -> Path:
    """The folder, or if there is one, the first of ``FOLDER.2``, ``FOLDER.3``, … that there is not."""
    names = (folder.with_name(f"{folder.name}.{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([folder], names) if not each.exists())
