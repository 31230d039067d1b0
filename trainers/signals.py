"""Signals that ask to end, held back while something is finished or undone."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
