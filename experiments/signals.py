"""When a command ends: by signals that it is sent, and with its parent."""

import ctypes
import os
import signal
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def exit_on_sigterm() -> None:
    """From now on SIGTERM and SIGHUP end this process by ``SystemExit``: workers and temporary folders go with it.

    Not in a job of several ranks (``RANK`` is set): there this process may wait in a collective, where Python handles
    no signal, and should die at once. Nor outside the main thread, or where they are ignored.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread() or "RANK" in os.environ:
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def end_with_parent() -> None:
    """From now on the kernel sends SIGTERM to this process when its parent has died, by SIGKILL, too. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
