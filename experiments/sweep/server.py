"""The processes that carry out a sweep's runs, one after another: ``mqgrad serve-runs``, on a lab or locally."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from ..netlab.iproute import NetLabError
from ..netlab.job import Job, describe, log_path, log_tail
from ..netlab.lab import NetLab, clean_lab, list_labs
from ..netlab.link import LinkRates, LinkShape
from ..netlab.run import RateSchedule
from .result import REASON_CHARACTERS, Ending
from .run_server import RunRequest
from .training_clock import FollowedClock, clock_path

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 10.0  # between asking processes to end and killing them
_WARNING = re.compile(r"\[W\d{4} ")  # of torch's, which are rarely why a process ended


class Server(Protocol):
    """Processes that wait for runs."""

    def request(self, run: RunRequest) -> None:
        """Ask for a run. The link is at its first rate when it begins; the seconds of a link with several rates are
        those of training."""
        ...

    def sent_bytes(self) -> list[int]:
        """What each host's interface has sent so far; empty where there is no lab, or it does not tell."""
        ...

    def ending(self) -> Ending | None:
        """How the processes have ended by themselves; None while they run. To be called often: rates change here."""
        ...

    def close(self, *, at_once: bool) -> None:
        """End the processes, by force if they do not end by themselves, or ``at_once``."""
        ...


class LabServer:
    """One process a host of a lab of its own.

    Raises:
        NetLabError: the lab cannot be built here.
    """

    def __init__(
        self, command: Sequence[str], rates: LinkRates, hosts: int, logs: Path, lab_name: str
    ) -> None:
        remove_stale_lab(lab_name)
        self._rates = rates
        self._logs = logs
        self._schedule: RateSchedule | None = None
        with contextlib.ExitStack() as stack:
            shape = LinkShape(rate_mbit_per_s=rates.mbit_per_s[0])
            self._lab = stack.enter_context(NetLab(hosts, shape, name=lab_name))
            self._job = Job(self._lab, command, logs, stack, stdin=subprocess.PIPE)
            stack.callback(self._job.stop)
            self._stack = stack.pop_all()

    def request(self, run: RunRequest) -> None:
        if len(self._rates.mbit_per_s) > 1:
            self._lab.set_rate(self._rates.mbit_per_s[0])
            clock = clock_path(Path(run.record))
            clock.unlink(missing_ok=True)  # of the run before
            self._schedule = RateSchedule(self._lab, self._rates.changes(), FollowedClock(clock).seconds)
        _send(self._job.stdin, run)

    def sent_bytes(self) -> list[int]:
        try:
            return [host.tx_bytes for host in self._lab.counters()]
        except NetLabError:  # a figure that is missing ends no sweep
            return []

    def ending(self) -> Ending | None:
        if self._schedule is not None:
            self._schedule.apply()
        stop = self._job.reason_to_stop((), None)
        if stop is None:
            return None
        told = stop.outcome if self._job.failed else describe(0)
        return _crashed(told, self._logs, next(iter(self._job.failed), 0))

    def close(self, *, at_once: bool) -> None:
        with self._stack:
            _end_input(self._job.stdin)
            deadline = time.monotonic() + (0.0 if at_once else _GRACE_SECONDS)
            while time.monotonic() < deadline and self._job.reason_to_stop((), None) is None:
                time.sleep(_POLL_SECONDS)


def remove_stale_lab(name: str) -> None:
    """Remove a lab that was left behind, by a sweep of the same folder that was killed or could not close it.

    Raises:
        NetLabError: it could not be removed.
    """
    if name in list_labs():
        clean_lab(name)


class LocalServer:
    """One process, which starts those of the other ranks on this machine."""

    def __init__(self, command: Sequence[str], logs: Path) -> None:
        self._logs = logs
        with log_path(logs, 0, "stdout").open("wb") as out, log_path(logs, 0, "stderr").open("wb") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
            )

    def request(self, run: RunRequest) -> None:
        _send(self._process.stdin, run)

    def sent_bytes(self) -> list[int]:
        return []

    def ending(self) -> Ending | None:
        code = self._process.poll()
        return None if code is None else _crashed(describe(code), self._logs, 0)

    def close(self, *, at_once: bool) -> None:
        _end_input(self._process.stdin)
        for number in (signal.SIGTERM,) if at_once else (None, signal.SIGTERM):
            if number is not None and self._process.poll() is None:
                self._process.send_signal(number)  # a script's background job would be deaf to SIGINT
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
                break
        with contextlib.suppress(ProcessLookupError):  # workers outlive a leader that was killed
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _send(stdin: IO[bytes] | None, run: RunRequest) -> None:
    assert stdin is not None
    with contextlib.suppress(BrokenPipeError):  # ended: how, is looked at next
        stdin.write(run.to_line().encode())
        stdin.flush()


def _end_input(stdin: IO[bytes] | None) -> None:
    assert stdin is not None
    with contextlib.suppress(BrokenPipeError):
        stdin.close()


def _crashed(outcome: str, logs: Path, rank: int) -> Ending:
    lines = [line for line in log_tail(logs, rank, lines=20).splitlines() if not _WARNING.match(line)]
    last_words = " ".join(" ".join(lines[-3:]).split())
    return Ending("crashed", f"{outcome} before the run was over: {last_words}"[:REASON_CHARACTERS])
