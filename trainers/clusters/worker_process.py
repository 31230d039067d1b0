"""One worker on this machine, as the driver sees it: a process, a channel, a log."""

import fcntl
import math
import os
import signal
import socket
import struct
import tempfile
import time
from multiprocessing.connection import Connection
from typing import IO

from .errors import LONGER, RESTART, WorkerError
from .fork_server_process import (
    CLOSE_SECONDS,
    LOG_TAIL_BYTES,
    ForkedProcess,
    ForkServerError,
    describe_exit,
    fork_server,
    log_tail,
)
from .worker import Failure, Heartbeat, Reply

GRACE_SECONDS = 0.5  # between the first failure and asking who failed first
_MOST_LOG_BYTES = 2**20
_MODULES = "Extension modules: "  # the last line that faulthandler writes of a crash, longer than all stacks


class WorkerProcess:
    """A worker and our end of its command channel.

    Args:
        seconds: longest that starting may take.

    Raises:
        WorkerError: it could not be started.
        OSError: the system refuses another process.
    """

    def __init__(self, rank: int, seconds: float) -> None:
        self.rank = rank
        self.log = _appended_file()
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # a default timeout that the script has set would make reading fail
            end.setblocking(True)
        try:
            with theirs:
                self.process = _forked(rank, theirs.fileno(), self.log.fileno(), seconds)
        except BaseException:  # Ctrl-C too: it may be forked yet, and is to find nobody
            ours.close()
            self.log.close()
            raise
        self.channel = Connection(ours.detach())

    def try_send(self, pickled: bytes, timeout_seconds: float) -> None:
        """Send, unless the worker is gone: then reading will tell.

        Raises:
            WorkerError: it has read nothing for ``timeout_seconds`` of what no longer fits into the channel.
        """
        _bound_sending(self.channel, timeout_seconds)
        try:
            self.channel.send_bytes(pickled)
        except BlockingIOError as error:
            raise explain_hang([self], timeout_seconds) from error
        except OSError:
            pass

    def receive(self) -> Reply | Failure | Heartbeat | None:
        """The next message, None if the worker is gone."""
        try:
            return self.channel.recv()
        except (EOFError, OSError):
            return None

    def trim_log(self) -> None:
        """Forget what it wrote long ago, as workers live through any number of runs."""
        if os.fstat(self.log.fileno()).st_size > _MOST_LOG_BYTES:
            os.ftruncate(self.log.fileno(), 0)

    def describe_exit(self) -> str:
        """How the process ended."""
        if not self.process.wait(CLOSE_SECONDS):
            return "closed its command channel"
        if self.process.returncode is None:
            how = self.process.server.how_it_ended()
            return f"ended with its parent, the process that forks workers, which {how}"
        return describe_exit(self.process.returncode)

    def log_tail(self) -> str:
        """The end of what it wrote to stdout and stderr, without the list of modules after a crash."""
        lines = log_tail(self.log, 2 * LOG_TAIL_BYTES).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(_MODULES))[-LOG_TAIL_BYTES:]


def _appended_file() -> IO[bytes]:
    """A temporary file that can be cut short while others write: they do so at its end, wherever that is."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file


def _bound_sending(channel: Connection, seconds: float) -> None:
    """Have the kernel end a send that waits for longer: ``Connection`` itself waits without a bound."""
    whole, rest = divmod(math.ceil(seconds * 1e6), 10**6)
    with socket.socket(fileno=os.dup(channel.fileno())) as shared:
        shared.setblocking(True)  # see above
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, rest))


def explain_hang(furthest_behind: list[WorkerProcess], timeout_seconds: float) -> WorkerError:
    """The rank furthest behind is to blame: the others wait for it. Where there are several, their stacks tell."""
    for worker in furthest_behind:
        worker.process.send_signal(signal.SIGUSR1)  # makes it write its traceback
    time.sleep(GRACE_SECONDS)
    first, *others = furthest_behind
    also = "".join(f", nor did rank {worker.rank}" for worker in others)
    stacks = "".join(f"\n--- rank {worker.rank} ---\n{worker.log_tail()}" for worker in others)
    reason = f"made no progress for {timeout_seconds:g} s{also}: {LONGER}"
    return WorkerError(first.rank, reason, first.log_tail() + stacks, RESTART)


def _forked(rank: int, channel: int, log: int, seconds: float) -> ForkedProcess:
    server = fork_server()
    try:
        return server.fork(channel, log, seconds)
    except ForkServerError as error:
        if (
            server.has_forked and error.has_ended
        ):  # since, perhaps because nothing was asked of it for a while
            return _forked(rank, channel, log, seconds)
        reason = f"could not be started: the process that forks workers {error}"
        raise WorkerError(rank, reason, error.log) from error
