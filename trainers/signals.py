"""Signals that ask to end: heeded, sent, and held back while something is finished or undone."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


@contextlib.contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Route signals to a handler until the block ends, where they are not ignored, as SIGHUP is under nohup.

    Only the main thread may; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    # None: not Python's, as of a program that Python is embedded in. Only that could put it back.
    before = {number: own for number, own in handlers.items() if own not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


def stopped_by(number: int) -> KeyboardInterrupt | SystemExit:
    """What to raise once a caught signal has been heeded, to end as by the signal itself: a KeyboardInterrupt for
    SIGINT, for others a SystemExit with 128 and their number."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP by number instead of dying of them; none outside the main thread."""
    caught: list[int] = []
    with signals_to(lambda number, frame: caught.append(number)):
        yield caught


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Signals that ask to end wait until the block has ended, however it does."""
    caught: list[int] = []
    try:
        with caught_signals() as caught:
            yield
    finally:
        for number in caught[:1]:
            signal.raise_signal(number)


def exit_on_sigterm() -> None:
    """From now on SIGTERM and SIGHUP end this process by ``SystemExit``: workers and temporary folders go with it.

    Not in a job of several ranks (``RANK`` is set): there this process may wait in a collective, where Python handles
    no signal, and should die at once. Nor outside the main thread, or where they are ignored.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise stopped_by(number)

    if threading.current_thread() is not threading.main_thread() or "RANK" in os.environ:
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def end_with_parent() -> None:
    """From now on the kernel sends SIGTERM to this process when its parent has died, by SIGKILL, too. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
