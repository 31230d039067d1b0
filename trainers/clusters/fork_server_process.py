"""The fork server and what it forks, as the driver sees them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import IO

from .fork_server import PID

CLOSE_SECONDS = 3.0  # a process that is idle exits at once
LINGER_SECONDS = (
    60.0  # what has no workers any more may be asked for others: after a failure, or for the next cluster
)
LOG_TAIL_BYTES = 8000
_OF_PYTEST = "PYTEST_CURRENT_TEST"  # differs from test to test, and changes nothing


class ForkServerError(RuntimeError):
    """The fork server gives no worker: it could not start, was killed, or has ended as nothing was asked of it."""

    def __init__(self, reason: str, log: str, *, has_ended: bool) -> None:
        super().__init__(reason)
        self.log = log
        """The end of what it wrote."""
        self.has_ended = has_ended
        """And not that it may come to answer yet."""


class ForkedProcess:
    """A process whose parent is the fork server, which tells how it has ended.

    Args:
        code: where its exit code comes.
        server: kept for as long as this one is.
    """

    def __init__(self, pid: int, code: Connection, server: "ForkServerProcess") -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code, or the negative number of the signal that ended it; None while it runs, and if it ended with
        the fork server, so that nobody can tell."""
        self.server = server
        self._code = code

    def wait(self, seconds: float) -> bool:
        """Whether it ends within that time; without the fork server none goes on."""
        if self.returncode is None and not self._code.poll(max(seconds, 0.0)):
            return False
        if self.returncode is None:
            with contextlib.suppress(EOFError):
                self.returncode = self._code.recv()
        return True

    def send_signal(self, number: int) -> None:
        """Unless it has ended, when its process id may be another's."""
        if not self.wait(0.0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by force."""
        self.send_signal(signal.SIGKILL)


class ForkServerProcess:
    """A process that runs ``fork_server.serve`` for this one.

    Args:
        path: its ``sys.path``, and the workers'.
        environment: its variables, and the workers'.
    """

    def __init__(self, path: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._requests, theirs = socket.socketpair()
        self._asking = threading.Lock()
        self.has_forked = False
        """Whether it has once been of use."""
        with theirs:
            # Code, not a file or module: either would put a folder of ours at the head of sys.path. Until our own
            # path is set, the current folder is there, with modules that may have names of Python's. Ctrl-C goes to
            # the whole group, also while this one imports; the driver decides what it means.
            code = (
                f"import sys; sys.path[:] = {list(path)!r}; "
                "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
                "from mqgrad.trainers.clusters.fork_server import serve; "
                f"serve({theirs.fileno()}, {os.getpid()}, {LINGER_SECONDS})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        self._finalizer = weakref.finalize(self, _end, self._process, self._requests, os.getpid())

    @property
    def can_fork(self) -> bool:
        """Whether it was there a moment ago."""
        return self._process.poll() is None and self._requests.fileno() >= 0

    def fork(self, channel: int, log: int, seconds: float) -> ForkedProcess:
        """Start a worker.

        Args:
            channel: file descriptor of its end of the command channel.
            log: file descriptor of what it writes to.
            seconds: longest to wait; the first time it takes some to import.

        Raises:
            ForkServerError: the server is gone, or did not answer in time.
            OSError: the system refuses another process.
        """
        with self._asking:
            try:
                return self._ask(channel, log, seconds)
            except BaseException:  # Ctrl-C too: an answer left there would be taken for the next one
                _close(self._requests)
                raise

    def _ask(self, channel: int, log: int, seconds: float) -> ForkedProcess:
        if self._requests.fileno() < 0:
            raise ForkServerError(
                "was asked for a worker in vain before", log_tail(self._log), has_ended=True
            )
        ours, theirs = Pipe(duplex=False)
        folder = os.open(".", os.O_PATH)
        try:
            self._requests.settimeout(seconds)
            with theirs:
                socket.send_fds(self._requests, [b"."], [channel, log, theirs.fileno(), folder])
            answer = self._requests.recv(PID.size)
        except TimeoutError:
            reason = f"did not answer within {seconds:g} s"
            raise ForkServerError(reason, log_tail(self._log), has_ended=False) from None
        except ConnectionError:
            answer = b""
        finally:
            os.close(folder)
        if not answer:
            raise ForkServerError(self.how_it_ended(), log_tail(self._log), has_ended=True)
        (pid,) = PID.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        self.has_forked = True
        return ForkedProcess(pid, ours, self)

    def how_it_ended(self) -> str:
        """Waits for that a little."""
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        return describe_exit(code)


def describe_exit(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"


def log_tail(log: IO[bytes], num_bytes: int = LOG_TAIL_BYTES) -> str:
    """The end of what a process wrote to a file."""
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), num_bytes, max(size - num_bytes, 0)).decode(errors="replace")


_Surroundings = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
_servers: dict[_Surroundings, ForkServerProcess] = {}
_looking = threading.Lock()


def _forget() -> None:
    """In a process that is forked from this one."""
    global _looking
    _looking = threading.Lock()
    _servers.clear()


os.register_at_fork(after_in_child=_forget)


def fork_server() -> ForkServerProcess:
    """The one of this process with its environment and ``sys.path`` as they are now; started if there is none.

    Workers have the umask, limits, CPU affinity, niceness and scheduling that this process had then.
    """
    with _looking:
        return _fork_server()


def _fork_server() -> ForkServerProcess:
    # Less what import passes over and is no literal.
    path = tuple(entry for entry in sys.path if isinstance(entry, str))
    environment = _environment()
    compared = tuple(sorted((name, value) for name, value in environment.items() if name != _OF_PYTEST))
    for key in [key for key, server in _servers.items() if not server.can_fork]:
        del _servers[key]
    key = (path, compared)
    if key not in _servers:
        _servers[key] = ForkServerProcess(path, environment)
    return _servers[key]


def _environment() -> dict[str, str]:
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the ranks share one machine
    return {**os.environ, **one_thread, "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}


def _end(process: "subprocess.Popen[bytes]", requests: socket.socket, owner: int) -> None:
    if os.getpid() != owner:
        requests.close()
        return
    _close(requests)  # without workers it exits at once
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close(requests: socket.socket) -> None:
    """Also where processes forked from this one hold it."""
    with contextlib.suppress(OSError):
        requests.shutdown(socket.SHUT_RDWR)
    requests.close()
