"""The processes of one command on the hosts of a lab: their environment, logs and end."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .lab import INTERFACE, Counters, NetLab

_GRACE_SECONDS = 5.0  # between asking the processes to end and killing them
TIMEOUT_STATUS = 124  # as timeout(1)
_MASTER_PORT = 29500  # a lab has its own network, so nothing else can use the port


@dataclass(kw_only=True, slots=True)
class HostResult:
    """What became of one host's command."""

    rank: int
    ending: str
    """``ended`` with status 0, ``failed`` by itself, or ``stopped`` by the lab."""
    returncode: int | None
    """As of ``subprocess``: negative for a signal, None if it could not be killed."""
    rx_bytes: int
    tx_bytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a job is over: one line, and the exit status that goes with it."""

    outcome: str
    status: int


class Job:
    """The processes of one command, one a host, started at once.

    Args:
        lab: an open lab.
        command: program and arguments.
        logs: an existing folder for their output.
        stack: closes the log files at its end.
        stdin: standard input of rank 0, as ``subprocess.Popen`` takes it; the others have none.
    """

    def __init__(
        self,
        lab: NetLab,
        command: Sequence[str],
        logs: Path,
        stack: contextlib.ExitStack,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self._lab = lab
        self._started = time.monotonic()
        self._ended_by_itself: dict[int, int] = {}  # return code by rank
        self._processes = [
            lab.popen(
                rank,
                command,
                env=host_environment(lab, rank),
                stdin=stdin if rank == 0 else subprocess.DEVNULL,
                stdout=stack.enter_context(log_path(logs, rank, "stdout").open("wb")),
                stderr=stack.enter_context(log_path(logs, rank, "stderr").open("wb")),
            )
            for rank in range(lab.hosts)
        ]

    def reason_to_stop(self, caught: Sequence[int], time_limit_seconds: float | None) -> Stop | None:
        """Why the job is over, or None while it goes on."""
        for rank, process in enumerate(self._processes):
            if rank not in self._ended_by_itself and process.poll() is not None:
                self._ended_by_itself[rank] = process.returncode
        if failed := self.failed:
            told = ", ".join(f"rank {rank} ({describe(code)})" for rank, code in failed.items())
            first = next(iter(failed.values()))
            return Stop(f"failed: {told}", first if first > 0 else 128 - first)
        if len(self._ended_by_itself) == len(self._processes):
            return Stop("ok", 0)
        if caught:
            return Stop(f"interrupted by {signal.Signals(caught[0]).name}", 128 + caught[0])
        if time_limit_seconds is not None and time.monotonic() - self._started > time_limit_seconds:
            running = [r for r in range(len(self._processes)) if r not in self._ended_by_itself]
            return Stop(f"time limit of {time_limit_seconds:g} s: ranks {running} still ran", TIMEOUT_STATUS)
        return None

    @property
    def failed(self) -> dict[int, int]:
        """Return codes, by rank, of the processes that failed by themselves, the first first."""
        return {rank: code for rank, code in self._ended_by_itself.items() if code != 0}

    @property
    def stdin(self) -> IO[bytes] | None:
        """Rank 0's standard input, if it is a pipe."""
        return self._processes[0].stdin

    def stop(self) -> None:
        """Ask what still runs to end, wait for a bounded time, then kill it and whatever it has started."""
        for process in self._processes:
            if process.poll() is None:  # else its number may belong to a stranger by now
                os.killpg(process.pid, signal.SIGTERM)
        self._wait()
        self._lab.kill_all()
        self._wait()

    def host_result(self, rank: int, before: Counters, after: Counters) -> HostResult:
        code = self._ended_by_itself.get(rank)
        return HostResult(
            rank=rank,
            ending="stopped" if code is None else "failed" if code else "ended",
            returncode=self._processes[rank].returncode,
            rx_bytes=after.rx_bytes - before.rx_bytes,
            tx_bytes=after.tx_bytes - before.tx_bytes,
        )

    def _wait(self) -> None:
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def host_environment(lab: NetLab, rank: int) -> dict[str, str]:
    """The variables that torchrun sets, for one process a host; this process's own for the rest."""
    torchrun = {
        "RANK": str(rank),
        "WORLD_SIZE": str(lab.hosts),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": lab.address(0),
        "MASTER_PORT": str(_MASTER_PORT),
        "TORCHELASTIC_RUN_ID": lab.name,
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
    }
    inherited = dict(os.environ)
    inherited.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # of a torchrun job around this one
    inherited.setdefault("OMP_NUM_THREADS", "1")  # the user's own choice wins, as in torchrun
    return {**inherited, **torchrun}


def describe(returncode: int) -> str:
    """``exit status 3`` or ``SIGKILL``."""
    return f"exit status {returncode}" if returncode >= 0 else signal.Signals(-returncode).name


def log_tail(logs: Path, rank: int, lines: int = 20) -> str:
    """The last lines that a host wrote to its standard error, or to its output if there are none."""
    for kind in ("stderr", "stdout"):
        with log_path(logs, rank, kind).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 200 * lines))
            text = file.read().decode(errors="replace").rstrip()
        if text:
            return "\n".join(text.splitlines()[-lines:])
    return ""


def log_path(logs: Path, rank: int, kind: str) -> Path:
    """The file with what a host wrote to ``stdout`` or ``stderr``."""
    return logs / f"rank{rank}.{kind}.log"


def find_program(name: str) -> str:
    """The path of a program; raises ValueError if there is none of this name."""
    # The scripts beside this Python come last: sudo resets PATH, and `mqgrad` itself is the usual command.
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    path = shutil.which(name, path=places)
    if path is None:
        raise ValueError(f"there is no program {name!r} to run on the hosts")
    return path
