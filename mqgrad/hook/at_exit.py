"""What becomes of a state that the script has not closed when the interpreter ends."""

import atexit
import contextlib
import os
import warnings
import weakref
from typing import Protocol

from .direct import DirectAverages

_DRAIN_SECONDS = 10.0  # other ranks may never send what a sum waits for


class Closable(Protocol):
    """A :class:`.CompressionState`."""

    def close(self) -> None: ...


_open: "weakref.WeakKeyDictionary[Closable, DirectAverages]" = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_open.clear)  # they are the parent's


def close_at_exit(state: Closable, direct: DirectAverages) -> None:
    """Have a state closed by then whose sums a backend's threads have ended.

    An exception, or Ctrl-C, may leave the script while sums are under way. A thread of Gloo that comes to call back
    when there is no interpreter any more aborts the process: torchrun would tell of a signal, and not of the
    exception. (The communication thread is waited for by Python itself.)
    """
    _open[state] = direct


@atexit.register
def _close_open() -> None:
    for state, direct in list(_open.items()):
        if direct.was_used and direct.drain(_DRAIN_SECONDS):
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what the script's own failure has left behind
                state.close()
