"""Signals that are routed elsewhere for a while."""

import signal
import threading

from mqgrad.trainers.signals import signals_to


def test_handlers_come_back_and_what_is_ignored_stays_ignored() -> None:
    caught: list[int] = []
    before = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_to(lambda number, frame: caught.append(number)):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
        assert caught == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is before[0]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before[1])


def test_outside_the_main_thread_nothing_changes() -> None:
    before, within = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with signals_to(signal.SIG_IGN):
            within.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert within == [before]
