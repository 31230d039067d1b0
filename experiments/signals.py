"""Signals that ask to end, collected, so that what is half-way through is finished or undone first."""

import contextlib
import signal
import threading
from collections.abc import Iterator


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
