"""The ranks of an existing torchrun job, driven by rank 0."""

import atexit
import contextlib
import datetime
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..signals import signals_to
from ..threads import torch_threads
from ..workloads.workload import Workload
from .control_channel import ControlChannel
from .errors import LONGER, WorkerError
from .session import TrainingSession
from .worker import START_SECONDS, Command, Failure, Reply

_REMEDY = "the job cannot go on; start it again"
_IDLE_SECONDS = 6 * 3600.0  # a served rank waits this long for the driver, which may be learning
_READ_SECONDS = 60.0  # that rank 0 may take to read what the others lack
_GRACE_SECONDS = 2.0  # ranks whose wait for one that hangs ends at the same time answer within this

_T = TypeVar("_T")


class TorchrunRanks:
    """One rank of a job in which rank 0 drives and the others serve.

    Construct it on every rank. A command is:

    1. Rank 0 tells it to all ranks (:class:`ControlChannel`).
    2. Every rank carries it out. Where one hangs, the collectives of the others fail after ``timeout_seconds``.
    3. All ranks exchange their answers, failures included. Ranks that work in step end a command within one iteration
       of one another, so one that has not answered after another ``timeout_seconds`` hangs or is gone.

    Rank 0 shares its process with whoever drives, who may learn in between, with random numbers and threads of its
    own. So the ranks keep both: they compute with as many threads as when they were made.

    Raises:
        RuntimeError: not started by torchrun, or its port is in use.
        WorkerError: a rank could not start.
    """

    def __init__(self, workload: Workload, timeout_seconds: float) -> None:
        timeout = datetime.timedelta(seconds=timeout_seconds)
        if not dist.is_initialized():
            _join(datetime.timedelta(seconds=START_SECONDS) + timeout)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._timeout_seconds = timeout_seconds
        self._channel = ControlChannel()
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self._session = TrainingSession(workload, self._group, timeout_seconds)
        self._threads = torch.get_num_threads()
        self._random_numbers = torch.get_rng_state()
        self._is_open = True
        atexit.register(self.close)
        with self._ending_on_failure():
            self._carry_out(Command("read_data", {}), START_SECONDS)  # before ranks wait for one another
            self._carry_out(Command("warm_up", {}))

    def call(self, method: str, /, **arguments: Any) -> list[Any]:
        """On rank 0: call a method of every rank's session; return what it returned, by rank.

        Raises:
            WorkerError: naming the rank that failed first, or that hangs.
        """
        if self.rank != 0:
            raise RuntimeError(f"rank {self.rank} cannot drive: only rank 0 does, call serve() on the others")
        if not self._is_open:
            raise RuntimeError(f"the cluster is closed; if by a failure or an interruption, {_REMEDY}")
        with self._ending_on_failure():
            command = Command(method, arguments)
            self._channel.tell(command, _IDLE_SECONDS)
            return self._carry_out(command)

    def serve(self) -> None:
        """On the other ranks: obey rank 0 until it closes the cluster.

        Ctrl-C, SIGTERM and SIGHUP, which torchrun passes on to all ranks, are ignored meanwhile: what they mean is
        for rank 0 to decide, which may have to finish something first. A rank that does not end torchrun kills.

        Raises:
            WorkerError: a rank failed or hangs, or rank 0 is gone.
        """
        deaf = signals_to(signal.SIG_IGN)
        with deaf, self._ending_on_failure():
            while (command := self._channel.tell(None, _IDLE_SECONDS)) is not None:
                self._carry_out(command)
        self._end()

    def close(self) -> None:
        """Let the other ranks' ``serve`` return. May be called twice."""
        if self._is_open and self.rank == 0:
            with contextlib.suppress(RuntimeError):  # the others may be gone already
                self._channel.tell(None, _IDLE_SECONDS)
        self._end()

    def _end(self) -> None:
        """Also joins the threads of the process groups, which must not outlive the interpreter."""
        if self._is_open:
            self._is_open = False
            self._channel.leave(_GRACE_SECONDS)
            self._session.close()
            dist.destroy_process_group(self._group)
            del self._session, self._group

    @contextlib.contextmanager
    def _ending_on_failure(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._end()
            if isinstance(error, WorkerError):
                raise
            reason = "lost the connection to the job, which torchrun explains"
            raise WorkerError(self.rank, reason, str(error), _REMEDY) from error
        except Exception:  # a mistake that no other rank has heard of
            raise
        except BaseException:  # Ctrl-C
            self._end()
            raise

    def _carry_out(self, command: Command, more_seconds: float = 0.0) -> list[Any]:
        """Carry out a command and exchange the answers, so that every rank knows when one has failed.

        Args:
            more_seconds: that a rank may take beyond the timeout.
        """
        answer: Reply | Failure
        try:
            with self._as_a_rank():
                answer = Reply(getattr(self._session, command.method)(**command.arguments))
            pickle.dumps(answer)  # a workload's own evaluation may return what cannot be
        except Exception:
            answer = self._failure(traceback.format_exc())
        except BaseException as interruption:
            # Ctrl-C on rank 0: the others hear of it, and it waits for none of them.
            self._channel.answer(self._failure(type(interruption).__name__))
            raise
        seconds = self._timeout_seconds + more_seconds
        return self._values(self._channel.gather(answer, seconds + _GRACE_SECONDS), seconds)

    @contextlib.contextmanager
    def _as_a_rank(self) -> Iterator[None]:
        with torch_threads(self._threads), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random_numbers)
            yield
            self._random_numbers = torch.get_rng_state()

    def _failure(self, reason: str) -> Failure:
        failure = Failure(reason, self._channel.next_number("failures"))
        with contextlib.suppress(Exception):
            self._session.close()  # closes its connections: ranks that wait for this one fail at once
        return failure

    def _values(self, answers: dict[int, Reply | Failure], seconds: float) -> list[Any]:
        for rank in range(self.world_size):  # one that hangs made the others fail
            if rank not in answers:
                reason = f"hangs or is gone: no answer for {seconds:g} s: {LONGER}"
                raise WorkerError(rank, reason, remedy=_REMEDY)
        failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, Failure)}
        if failures:
            rank, failure = min(failures.items(), key=lambda item: item[1].order)
            raise WorkerError(rank, "raised an exception", failure.traceback, _REMEDY)
        return [answer.value for _, answer in sorted(answers.items()) if isinstance(answer, Reply)]


def on_rank_0(read: Callable[[], _T]) -> _T:
    """What ``read`` returns on rank 0, on every rank of a torchrun job: the others may lack the files that it reads.

    Raises:
        Exception: on rank 0, whatever ``read`` raises.
        WorkerError: on the others, that it raised or took longer than a minute.
    """
    if not dist.is_initialized():
        _join(datetime.timedelta(seconds=START_SECONDS + _READ_SECONDS))
    channel = ControlChannel()
    error, outcome = _attempt(read) if channel.rank == 0 else (None, None)
    try:
        outcome = channel.tell(outcome, _READ_SECONDS)
    except RuntimeError as lost:
        raise WorkerError(0, f"said nothing for {_READ_SECONDS:g} s", str(lost), _REMEDY) from lost
    channel.leave(_GRACE_SECONDS)
    if error is not None:
        raise error
    if isinstance(outcome, Failure):
        raise WorkerError(0, "could not begin", outcome.traceback, _REMEDY)
    value: _T = outcome.value
    return value


def _attempt(read: Callable[[], object]) -> tuple[Exception | None, Reply | Failure]:
    try:
        return None, Reply(read())
    except Exception as error:
        return error, Failure(f"{type(error).__name__}: {error}", order=0)


def check_torchrun() -> None:
    """Raise ``RuntimeError``, naming what is missing, unless this process has the environment of a torchrun job."""
    missing = [v for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if v not in os.environ]
    if missing:
        raise RuntimeError(
            f"not a torchrun job: {', '.join(missing)} not set; start the script with torchrun, or a command of "
            "mqgrad without TORCHELASTIC_RUN_ID in its environment"
        )


def _join(timeout: datetime.timedelta) -> None:
    check_torchrun()
    try:
        dist.init_process_group("gloo", timeout=timeout)
    except dist.DistNetworkError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RuntimeError(
            f"rank {os.environ['RANK']} cannot meet the others at {where} ({error}); "
            "if that port is in use, choose another one with --master-port"
        ) from error
