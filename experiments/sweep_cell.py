"""One run of a sweep: ``mqgrad run`` on the hosts of a lab or in local processes, made into a row of results."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .machine_load import OthersLoad
from .netlab import NetLab, clean_lab, list_labs
from .netlab_job import describe, find_program, log_path, log_tail
from .netlab_link import LinkShape
from .netlab_run import run_lab
from .sweep_config import SweepConfig
from .sweep_grid import Cell, Link, System
from .sweep_result import REASON_CHARACTERS, CellResult, Ending, result_of

_POLL_SECONDS = 0.05
_RECORD = "record.json"
_GRACE_SECONDS = 10.0  # between asking a local run to end and killing it


class Place(NamedTuple):
    """Where and how the runs of a sweep are carried out."""

    logs: Path
    """Folder for output of the run in progress and of those that failed."""
    lab_name: str
    program: Sequence[str]
    """The command, up to its options: ``mqgrad run``."""
    caught: Sequence[int]
    """Numbers of signals that ask to stop, filled by a handler."""


def default_program() -> list[str]:
    """``mqgrad run`` of this Python's own environment."""
    beside = Path(sys.executable).with_name("mqgrad")
    return [str(beside) if beside.exists() else find_program("mqgrad"), "run"]


def run_cell(cell: Cell, config: SweepConfig, place: Place, revision: str | None = None) -> CellResult:
    """Carry out one run, whatever becomes of it. Logs are kept if it crashed or timed out.

    Raises:
        KeyboardInterrupt: a signal asked to stop; the run's processes are gone.
        NetLabError: no lab can be built here.
    """
    logs = place.logs / re.sub(r"[^A-Za-z0-9.=-]+", "_", "-".join(map(str, cell)))
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    record = logs / _RECORD
    link = Link.parse(cell.link)
    command = [*place.program, *run_arguments(cell, config, link, record)]
    started, others = time.monotonic(), OthersLoad()
    run = _run_locally if link.emulated else _run_on_lab
    ending = run(command, link, config.hosts, config.limit_of(cell), logs, place)
    if place.caught:
        raise KeyboardInterrupt
    result = result_of(
        cell,
        ending,
        record,
        wall_seconds=round(time.monotonic() - started, 2),
        others_cores=None if (cores := others.cores()) is None else round(cores, 2),
        revision=revision,
    )
    if result.outcome in ("finished", "diverged"):
        shutil.rmtree(logs)
    return result


def run_arguments(cell: Cell, config: SweepConfig, link: Link, record: Path) -> list[str]:
    """The options of ``mqgrad run``."""
    arguments = [
        "--workload",
        cell.workload,
        "--seed",
        str(cell.seed),
        *System.parse(cell.system).arguments(),
    ]
    if cell.workload in config.budget_seconds:
        arguments += ["--budget-seconds", str(config.budget_seconds[cell.workload])]
    if config.iterations is not None:
        arguments += ["--iterations", str(config.iterations)]
    for name, value in config.workload_settings(cell.workload, cell.optimizer).items():
        arguments += ["--set", f"{name}={json.dumps(value)}"]
    if link.emulated:
        arguments += ["--num-workers", str(config.hosts)]
        if link.rates.mbit_per_s != (None,):
            arguments += ["--link-mbit-per-s", emulation(link)]
    return [*arguments, "--record", str(record)]


def emulation(link: Link) -> str:
    """The link as ``mqgrad run --link-mbit-per-s`` takes it."""
    rates = "/".join(f"{rate:g}" for rate in link.rates.mbit_per_s if rate is not None)
    return rates if len(link.rates.mbit_per_s) == 1 else f"{rates}@{link.rates.switch_seconds:g}"


def _run_on_lab(command: list[str], link: Link, hosts: int, limit: float, logs: Path, place: Place) -> Ending:
    if place.lab_name in list_labs():  # left behind by a sweep of this folder that was killed
        clean_lab(place.lab_name)
    shape = LinkShape(rate_mbit_per_s=link.rates.mbit_per_s[0])
    with NetLab(hosts, shape, name=place.lab_name) as lab:
        result = run_lab(
            lab,
            command,
            logs,
            schedule=link.rates.changes(),
            schedule_after=logs / _RECORD,  # which is there from when training begins
            timeout_seconds=limit,
            stream=False,
            caught_signals=place.caught,
        )
    if result.outcome == "ok":
        return Ending("ok", "")
    failed = [host.rank for host in result.hosts if host.ending == "failed"]
    if not failed:
        return Ending("timed out", result.outcome)
    return Ending("crashed", _reason(result.outcome, logs, failed[0]))


def _run_locally(
    command: list[str], link: Link, hosts: int, limit: float, logs: Path, place: Place
) -> Ending:
    deadline = time.monotonic() + limit
    with log_path(logs, 0, "stdout").open("wb") as out, log_path(logs, 0, "stderr").open("wb") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            while process.poll() is None and not place.caught and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        finally:
            ended_by_itself = process.poll() is not None
            _stop(process)
    if not ended_by_itself:
        return Ending("timed out", f"time limit of {limit:g} s")
    if process.returncode != 0:
        return Ending("crashed", _reason(f"failed: {describe(process.returncode)}", logs, 0))
    return Ending("ok", "")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask a run to end, as Ctrl-C does, and then kill it with everything it has started."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
        return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(outcome: str, logs: Path, rank: int) -> str:
    last_words = " ".join(log_tail(logs, rank, lines=3).split())
    return f"{outcome}: {last_words}"[:REASON_CHARACTERS]
