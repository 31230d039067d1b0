"""The process that forks workers: it has imported what they need, which takes each of them seconds of CPU time.

Like :mod:`multiprocessing.forkserver`, but of use to scripts without a ``__main__`` guard and to daemonic processes.
"""

import contextlib
import errno
import gc
import importlib
import os
import signal
import socket
import struct
import traceback
from multiprocessing.connection import Connection, wait
from typing import NoReturn

import numpy as np

from .worker import main

PID = struct.Struct("i")
"""The answer to a request: a process id, or the negative error number of what failed."""

_FDS = 4  # of a request
_SLICE_SECONDS = 1.0  # between looks at whether the driver is still there


def serve(requests_fd: int, driver: int, linger_seconds: float) -> None:
    """Fork workers until the driver has gone, or there are none left and none is asked for.

    1. A request brings four file descriptors: of the worker's channel, of its log, of where to tell its exit code,
       and of its current folder. The answer is ``PID``.
    2. When the worker has ended, and its process id is free, its exit code is told.

    Args:
        requests_fd: inherited file descriptor of the socket on which requests come.
        driver: process id of who sends them.
        linger_seconds: for which to wait for another one when there are no workers left.
    """
    _import_for_workers()
    gc.freeze()  # or collections in workers would copy the memory of all that is imported
    children = _Children()
    requests = socket.socket(fileno=requests_fd)
    requests.setblocking(True)  # whatever default timeout a script has set
    watched: list[socket.socket | int] = [requests, children.ended]
    quiet_seconds = 0.0
    while os.getppid() == driver and (children or (requests in watched and quiet_seconds < linger_seconds)):
        ready = wait(watched, _SLICE_SECONDS)
        children.tell_codes()
        if requests in ready and not _answer(requests, children):
            watched.remove(requests)
        quiet_seconds = 0.0 if ready or children else quiet_seconds + _SLICE_SECONDS


class _Children:
    """The workers that run."""

    def __init__(self) -> None:
        self._codes: dict[int, Connection] = {}  # where the exit code of each goes
        self.ended, wakeup = os.pipe()
        """A file descriptor that can be read when one has ended."""
        os.set_blocking(self.ended, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def __len__(self) -> int:
        return len(self._codes)

    def add(self, pid: int, code: Connection) -> None:
        self._codes[pid] = code

    def tell_codes(self) -> None:
        """Of those that have ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.ended, 4096)
        while self._codes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._codes.pop(pid) as code, contextlib.suppress(OSError):  # nobody may ask any more
                code.send(os.waitstatus_to_exitcode(status))

    def forget(self) -> None:
        """In a worker, whose siblings they are."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for code in self._codes.values():
            code.close()  # or nobody would be told of the server's end


def _import_for_workers() -> None:
    """What they would import at first use. None of it starts a thread, which a forked process would not have."""
    import torch._dynamo  # noqa: F401 (for DDP and optimizers)

    with contextlib.suppress(ImportError):  # a workload that needs it tells
        import sklearn.datasets  # noqa: F401


def _answer(requests: socket.socket, children: _Children) -> bool:
    """Fork the worker that is asked for; False if the driver wants no more of them."""
    try:
        message, fds, _, _ = socket.recv_fds(requests, 1, _FDS)
        if message:
            requests.sendall(PID.pack(_fork(fds, requests, children)))
    except ConnectionError:  # it was interrupted while it waited for the answer
        return False
    return bool(message)


def _fork(fds: list[int], requests: socket.socket, children: _Children) -> int:
    """The answer to a request."""
    if len(fds) < _FDS:  # there was no room for them
        for fd in fds:
            os.close(fd)
        return -errno.EMFILE
    channel, log, code, folder = fds
    try:
        pid = os.fork()
    except OSError as error:
        pid = -(error.errno or 1)
    if pid == 0:
        _work(channel, log, code, folder, requests, children)
    for fd in (channel, log, folder):
        os.close(fd)
    if pid > 0:
        children.add(pid, Connection(code, readable=False))
    else:
        os.close(code)
    return pid


def _work(
    channel: int, log: int, code: int, folder: int, requests: socket.socket, children: _Children
) -> NoReturn:
    """In the forked process: be a worker as if started alone."""
    try:
        children.forget()
        requests.close()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.fchdir(folder)
        importlib.invalidate_caches()  # of what relative entries of sys.path mean, and of folders that were missing
        for fd in (log, code, folder):
            os.close(fd)
        np.random.seed()  # or all would draw the same; the random module sees to itself
        main(channel)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
