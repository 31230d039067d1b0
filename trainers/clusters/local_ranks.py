"""Worker processes on this machine, and what the driver does with them."""

import os
import pickle
import shutil
import tempfile
import time
import weakref
from multiprocessing.connection import Connection, wait
from typing import Any

from ..signals import deferred_signals
from .errors import RESTART, WorkerError
from .fork_server_process import CLOSE_SECONDS, fork_server
from .worker import START_SECONDS, Command, Failure, Heartbeat, WorkerSetup
from .worker_process import GRACE_SECONDS, WorkerProcess, explain_hang

_SLICE_SECONDS = 1.0  # of waiting for workers


class LocalRanks:
    """One process per rank, forked by the fork server of this one.

    Args:
        workload: ``"package.module:factory"``, importable with this process's ``sys.path``.
        timeout_seconds: longest that a single iteration, reset or evaluation may take.

    Raises:
        WorkerError: a rank could not start.
    """

    def __init__(
        self, workload: str, workload_settings: dict[str, Any], world_size: int, timeout_seconds: float
    ) -> None:
        self.world_size = world_size
        self.are_lost = False
        """Whether they have been killed because of a failure or an interruption."""
        self._timeout_seconds = timeout_seconds
        fork_server()  # before the finalizer below: what was made first ends last
        self._folder = tempfile.mkdtemp(prefix="mqgrad-")
        self._workers: list[WorkerProcess] = []
        # Also runs at exit; not in a process forked from this one, whose workers these are not.
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, self._folder, os.getpid())
        starting_seconds = max(START_SECONDS, timeout_seconds)
        try:
            for rank in range(world_size):
                self._workers.append(WorkerProcess(rank, starting_seconds))
            for worker in self._workers:
                setup = WorkerSetup(
                    rank=worker.rank,
                    world_size=world_size,
                    workload=workload,
                    workload_settings=workload_settings,
                    rendezvous_file=os.path.join(self._folder, "rendezvous"),
                    timeout_seconds=timeout_seconds,
                )
                worker.try_send(pickle.dumps(setup), starting_seconds)
            self._collect(starting_seconds)
        except WorkerError as error:
            self._kill()
            raise WorkerError(
                error.rank, error.reason, error.details
            ) from error  # there is nothing to restart
        except BaseException:
            self._kill()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [worker.process.pid for worker in self._workers]

    def call(self, method: str, /, **arguments: Any) -> list[Any]:
        """Call a method of every rank's ``TrainingSession``; return what it returned, by rank.

        Raises:
            WorkerError: a rank died, hung or raised; all of them have been stopped.
        """
        if not self._finalizer.alive:
            raise RuntimeError(RESTART)
        command = pickle.dumps(Command(method, arguments))  # what does not pickle costs no worker
        try:
            for worker in self._workers:
                worker.trim_log()
                worker.try_send(command, self._timeout_seconds)
            return self._collect(self._timeout_seconds)
        except BaseException:  # Ctrl-C too: an answer left in a channel would be taken for the next one
            self._kill()
            raise

    def close(self) -> None:
        """Stop all workers, by force if they do not exit soon. May be called twice."""
        self._finalizer()

    def _kill(self) -> None:
        self.are_lost = True
        for worker in self._workers:
            worker.process.kill()
        self.close()

    def _collect(self, timeout_seconds: float) -> list[Any]:
        """Wait for one reply per rank, for as long as some rank makes progress within the timeout."""
        replies: dict[int, Any] = {}
        positions = {worker.rank: (0, 0) for worker in self._workers}
        deadline = time.monotonic() + timeout_seconds
        while len(replies) < self.world_size:
            waiting = {w.channel: w for w in self._workers if w.rank not in replies}
            ready, stopped = _wait(list(waiting), deadline)
            deadline += stopped
            for channel in ready:
                worker = waiting[channel]
                message = worker.receive()
                if message is None or isinstance(message, Failure):
                    raise self._explain(worker, message)
                if isinstance(message, Heartbeat) and message.position == positions[worker.rank]:
                    continue
                if isinstance(message, Heartbeat):
                    positions[worker.rank] = message.position
                else:
                    replies[worker.rank] = message.value
                deadline = time.monotonic() + timeout_seconds
            if time.monotonic() >= deadline:
                late = {w.rank: w for w in self._workers if w.rank not in replies}
                furthest_behind = min(positions[rank] for rank in late)
                hung = [w for rank, w in late.items() if positions[rank] == furthest_behind]
                raise explain_hang(hung, timeout_seconds)
        return [replies[rank] for rank in range(self.world_size)]

    def _explain(self, first: "WorkerProcess", message: Failure | None) -> WorkerError:
        """Find the rank that failed first: whoever loses its peer fails too, and may be heard earlier."""
        failures = {first.rank: message}
        deadline = time.monotonic() + GRACE_SECONDS
        others = {w.channel: w for w in self._workers if w is not first}
        while others and (ready := wait(list(others), timeout=max(deadline - time.monotonic(), 0.0))):
            for channel in ready:
                heard = others[channel].receive()  # type: ignore[index]
                if heard is None or isinstance(heard, Failure):
                    worker = others.pop(channel)  # type: ignore[call-overload]
                    failures[worker.rank] = heard
        for rank, failure in failures.items():
            if failure is None:
                worker = self._workers[rank]
                raised = "".join(f"\n--- rank {r} ---\n{f.traceback}" for r, f in failures.items() if f)
                return WorkerError(rank, worker.describe_exit(), worker.log_tail() + raised, RESTART)
        rank, failure = min(failures.items(), key=lambda item: item[1].order if item[1] else 0.0)
        assert failure is not None
        return WorkerError(rank, "raised an exception", failure.traceback, RESTART)


def _wait(channels: list[Connection], deadline: float) -> tuple[list[Any], float]:
    """Channels that can be read, after a second at most, and the seconds for which this process did not run: it was
    stopped (Ctrl-Z), or the machine was asleep, and so were the workers."""
    before = time.monotonic()
    asked = min(max(deadline - before, 0.0), _SLICE_SECONDS)
    ready = wait(channels, timeout=asked)
    excess = time.monotonic() - before - asked
    return ready, excess if excess > _SLICE_SECONDS else 0.0


def _shut_down(workers: list[WorkerProcess], folder: str, owner: int) -> None:
    if os.getpid() != owner:
        return
    with deferred_signals():  # they would leave processes and the folder behind
        _end_all(workers)
        shutil.rmtree(folder, ignore_errors=True)  # workers remove it, too


def _end_all(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        worker.channel.close()  # an idle worker exits at the end of its channel
    deadline = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        if not worker.process.wait(deadline - time.monotonic()):
            worker.process.kill()
            worker.process.wait(CLOSE_SECONDS)
        worker.log.close()
