"""Signals that are routed elsewhere for a while, and processes that are to end with the one that started them."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mqgrad.trainers.signals import signals_to

WAITS = """
import sys, time
from mqgrad.trainers.signals import end_with_parent
end_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
STARTS = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-P', '-c', {WAITS!r}]).pid, flush=True)"


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


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels tell nothing of a parent's end")
def test_a_process_ends_with_its_parent_however_that_ends() -> None:
    command = [sys.executable, "-c", f"{STARTS}; import time; time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        deadline = time.monotonic() + 30
        while state(child) not in ("", "Z"):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def state(pid: int) -> str:
    """As ``ps`` tells it; empty of a process that is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
