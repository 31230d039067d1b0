"""Rank 0's output as it comes."""

import contextlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from .job import log_path

_POLL_SECONDS = 0.02


class Rank0Output:
    """Copies rank 0's logs to this process's own output, until :meth:`end`.

    From its logs: with pipes, a full terminal would hold up rank 0 alone and distort what is measured. And on a
    thread: where nobody reads on, as in a pager, neither rates, nor the time limit, nor a signal may wait.

    Args:
        logs: folder with the logs, which exist.
    """

    def __init__(self, logs: Path) -> None:
        streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._kinds = {
            kind: to.buffer for kind, to in streams.items() if to is not None
        }  # None: it was closed
        self._ended = threading.Event()
        # No daemon: Python would not end while that is within a write.
        self._thread = threading.Thread(target=self._follow, args=(logs,), name="mqgrad-rank-0-output")
        self._thread.start()

    def end(self, caught_signals: Sequence[int]) -> None:
        """Wait until all that has been written is copied, or a signal has been caught."""
        self._ended.set()
        while self._thread.is_alive() and not caught_signals:
            self._thread.join(_POLL_SECONDS)

    def _follow(self, logs: Path) -> None:
        with contextlib.ExitStack() as stack:
            logged = {kind: stack.enter_context(log_path(logs, 0, kind).open("rb")) for kind in self._kinds}
            tails = [(logged[kind], terminal) for kind, terminal in self._kinds.items()]
            is_last = False
            while tails and not is_last:
                is_last = self._ended.wait(_POLL_SECONDS)  # before reading: then nothing is written any more
                tails = [(log, to) for log, to in tails if _copy(log, to)]


def _copy(log: BinaryIO, terminal: BinaryIO) -> bool:
    """Copy what is new; False where nobody will read it, as of ``| head``, or it cannot be written: the job and its
    record go on."""
    try:
        left = memoryview(log.read())
        while left:  # of what is unbuffered, as by PYTHONUNBUFFERED=1, one write may take a part alone
            left = left[terminal.write(left) or 0 :]
        terminal.flush()
    except BrokenPipeError:
        return False
    except OSError as error:  # a full disk, a terminal that is gone
        with contextlib.suppress(OSError):
            print(f"rank 0's output is in {log.name} alone: {error}", file=sys.stderr)
        return False
    return True
