"""Signals that ask to end, collected, so that what is half-way through is finished or undone first."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


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


def stopped_by(number: int) -> KeyboardInterrupt | SystemExit:
    """What to raise once a caught signal has been heeded, to end as by the signal itself: a KeyboardInterrupt for
    SIGINT, for others a SystemExit with 128 and their number."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP by number instead of dying of them; none outside the main thread."""
    caught: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # only the main thread may handle signals
    previous = {number: signal.getsignal(number) for number in numbers}
    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, frame: caught.append(number))
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
