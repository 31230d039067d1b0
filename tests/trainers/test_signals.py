"""Signals that are routed elsewhere for a while."""

import signal
import threading

import pytest

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


def test_a_handler_that_is_not_pythons_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    of_python = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == signal.SIGINT else of_python(n))
    before = of_python(signal.SIGINT), of_python(signal.SIGTERM)
    with signals_to(signal.SIG_IGN):
        assert of_python(signal.SIGINT) is before[0]
        assert of_python(signal.SIGTERM) is signal.SIG_IGN
    assert (of_python(signal.SIGINT), of_python(signal.SIGTERM)) == before


def test_outside_the_main_thread_nothing_changes() -> None:
    before, within = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with signals_to(signal.SIG_IGN):
            within.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert within == [before]
