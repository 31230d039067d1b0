"""The process of one local rank: obeys the driver's commands until the channel closes."""

import dataclasses
import datetime
import faulthandler
import os
import pickle
import shutil
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..workloads.workload import make_workload
from .session import TrainingSession

HEARTBEAT_SECONDS = 0.25
START_SECONDS = 120.0  # importing torch and reading data takes this long on a busy machine, at most


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """First message to a worker."""

    rank: int
    world_size: int
    workload: str
    """``"package.module:factory"``"""
    workload_settings: dict[str, Any]
    rendezvous_file: str
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """Call a method of the rank's session."""

    method: str
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What the method returned."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """The method raised. The rank is of no further use."""

    traceback: str
    order: float
    """Smaller if earlier: what one rank raises first makes the others fail too. On one machine, the time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Heartbeat:
    """Where a busy rank has got to; see ``TrainingSession.position``."""

    position: tuple[int, int]


def main(channel_fd: int) -> None:
    """Entry point of a worker process.

    Args:
        channel_fd: inherited file descriptor of the command channel.
    """
    faulthandler.enable()  # the driver tells the end of our log, and a crash within C++ leaves nothing else there
    faulthandler.register(signal.SIGUSR1)  # by which the driver asks a rank that hangs where it is
    worker = Worker(Connection(channel_fd))
    threading.Thread(target=worker.watch, args=(os.getppid(),), daemon=True).start()
    try:
        worker.serve()
    except _ChannelClosed:  # by the driver, or it died
        worker.remove_folder()
    except BaseException:
        worker.send(Failure(traceback.format_exc(), time.time()))
    os._exit(0)  # without teardown: it could wait for ranks that are gone


class _ChannelClosed(Exception):
    """There will be no further command."""


class Worker:
    """A rank's end of the command channel."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._session: TrainingSession | None = None
        self._position = (0, 0)
        """While there is no session."""
        self._busy = True
        self._folder: str | None = None

    def serve(self) -> None:
        """Set up, then obey commands. Raises _ChannelClosed at the end of the channel."""
        session = self._session = self._open_session(self._next())
        session.warm_up()
        self.send(Reply(None))
        while True:
            command: Command = self._next()
            self._busy = True
            self.send(Reply(getattr(session, command.method)(**command.arguments)))

    def _open_session(self, setup: WorkerSetup) -> TrainingSession:
        torch.set_num_threads(1)  # the ranks share one machine
        self._folder = os.path.dirname(setup.rendezvous_file)
        workload = make_workload(setup.workload, **setup.workload_settings)
        self._position = (0, 1)
        # Longer than the driver waits: it must hear of the rank that hangs, not from those that wait for it.
        timeout_seconds = START_SECONDS + setup.timeout_seconds
        return TrainingSession(workload, _join(setup, timeout_seconds), timeout_seconds)

    def _next(self) -> Any:
        try:
            return self._channel.recv()
        except EOFError as error:
            raise _ChannelClosed from error  # a workload may raise EOFError of its own

    def remove_folder(self) -> None:
        """Of this cluster's rendezvous: a driver that was killed leaves it behind."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, message: Reply | Failure) -> None:
        """Answer the driver; nothing follows until its next command."""
        with self._sending:
            self._busy = False
            self._send(message)

    def watch(self, parent: int) -> None:
        """Report progress while busy, and end the process when the driver is gone even if the rank hangs."""
        while os.getppid() == parent:
            time.sleep(HEARTBEAT_SECONDS)
            with self._sending:
                if self._busy:
                    self._send(Heartbeat(self._position if self._session is None else self._session.position))
        self._exit()

    def _exit(self) -> NoReturn:
        """The driver is gone."""
        self.remove_folder()
        os._exit(1)

    def _send(self, message: Reply | Failure | Heartbeat) -> None:
        try:
            # Its own send() would share the memory of tensors.
            self._channel.send_bytes(pickle.dumps(message))
        except OSError:
            self._exit()


def _join(setup: WorkerSetup, timeout_seconds: float) -> dist.ProcessGroup:
    store = dist.FileStore(setup.rendezvous_file, setup.world_size)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=setup.rank,
        world_size=setup.world_size,
        timeout=datetime.timedelta(seconds=timeout_seconds),
    )
    assert dist.group.WORLD is not None
    return dist.group.WORLD
