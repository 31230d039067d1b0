"""The ranks of an existing torchrun job, driven by rank 0."""

import contextlib
import datetime
import os
import time
import traceback
from typing import Any

import torch.distributed as dist

from .errors import WorkerError
from .session import TrainingSession
from .worker import Command, Failure, Reply
from .workload import Workload

_REMEDY = "the job cannot go on; start it again"
_IDLE = datetime.timedelta(hours=6)  # a served rank waits this long for the driver, which may be learning


class TorchrunRanks:
    """One rank of a job in which rank 0 drives and the others serve.

    Construct it on every rank. Commands go out and replies come back on a Gloo group of their own.

    Raises:
        RuntimeError: not started by torchrun, or its port is in use.
    """

    def __init__(self, workload: Workload, timeout_seconds: float) -> None:
        timeout = datetime.timedelta(seconds=timeout_seconds)
        if not dist.is_initialized():
            _join(timeout)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._control = dist.new_group(backend="gloo", timeout=_IDLE)
        # A rank that waits for one that hangs gives up after the timeout, and only then comes here to wait again.
        self._replies = dist.new_group(backend="gloo", timeout=2 * timeout)
        self._session = TrainingSession(
            workload, dist.new_group(backend="gloo", timeout=timeout), timeout_seconds
        )
        self._session.warm_up()
        self._is_open = True

    def call(self, method: str, /, **arguments: Any) -> list[Any]:
        """On rank 0: call a method of every rank's session; return what it returned, by rank.

        Raises:
            WorkerError: naming the rank that failed first.
        """
        if self.rank != 0:
            raise RuntimeError(f"rank {self.rank} cannot drive: only rank 0 does, call serve() on the others")
        if not self._is_open:
            raise RuntimeError("the cluster is closed")
        return self._exchange(Command(method, arguments))

    def serve(self) -> None:
        """On the other ranks: obey rank 0 until it closes the cluster.

        Raises:
            WorkerError: a rank failed, or rank 0 is gone.
        """
        while self._is_open:
            self._exchange(None)

    def close(self) -> None:
        """Let the other ranks' ``serve`` return. May be called twice."""
        if self._is_open and self.rank == 0:
            self._exchange(None)
        self._end()

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._session.close()

    def _exchange(self, command: Command | None) -> list[Any]:
        """One command: rank 0's is carried out on every rank, None ends the service."""
        try:
            command = self._broadcast(command)
            if command is None:
                self._end()
                return []
            return self._reply(command)
        except WorkerError:
            self._is_open = False
            raise
        except RuntimeError as error:  # a rank that is gone has closed its connections
            self._is_open = False
            reason = f"lost the connection to another rank, which torchrun names; {_REMEDY}"
            raise WorkerError(self.rank, reason, str(error)) from error

    def _broadcast(self, command: Command | None) -> Command | None:
        carrier = [command]
        dist.broadcast_object_list(carrier, src=0, group=self._control)
        return carrier[0]

    def _reply(self, command: Command) -> list[Any]:
        """Carry out a command and exchange the answers, so that every rank knows when one has failed."""
        answer: Reply | Failure
        try:
            answer = Reply(getattr(self._session, command.method)(**command.arguments))
        except Exception:
            answer = Failure(traceback.format_exc(), time.time())
            with contextlib.suppress(Exception):
                self._session.close()  # closes its connections: ranks that wait for this one fail at once
        answers = self._gather(answer)
        failures = [(a.time, rank) for rank, a in enumerate(answers) if isinstance(a, Failure)]
        if failures:
            _, rank = min(failures)
            raise WorkerError(rank, f"raised an exception; {_REMEDY}", answers[rank].traceback)
        return [a.value for a in answers]

    def _gather(self, answer: Reply | Failure) -> list[Any]:
        answers: list[Any] = [None] * self.world_size
        try:
            dist.monitored_barrier(
                self._replies, wait_all_ranks=True
            )  # its error names the ranks that are missing
            dist.all_gather_object(answers, answer, group=self._replies)
        except RuntimeError as error:
            details = answer.traceback if isinstance(answer, Failure) else ""
            reason = f"waited in vain for another rank, which hangs or is gone ({error}); {_REMEDY}"
            raise WorkerError(self.rank, reason, details) from error
        return answers


def _join(timeout: datetime.timedelta) -> None:
    missing = [v for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if v not in os.environ]
    if missing:
        raise RuntimeError(
            f"not a torchrun job: {', '.join(missing)} not set; start the script with torchrun"
        )
    try:
        dist.init_process_group("gloo", timeout=timeout)
    except dist.DistNetworkError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RuntimeError(
            f"rank {os.environ['RANK']} cannot meet the others at {where} ({error}); "
            "if that port is in use, choose another one with --master-port"
        ) from error
