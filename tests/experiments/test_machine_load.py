"""Whose work counts as that of others. Other work may be going on, which only adds to theirs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqgrad.experiments.machine_load import OthersLoad, busy_seconds, own_seconds

SPENT = 0.5  # CPU seconds of each process below
WORK = f"""
import pathlib, sys, time
while time.process_time() < {SPENT}:
    pass
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
# The process that it starts has nobody above it who belongs to the test.
ORPHAN = """
import subprocess, sys
command = [sys.executable, "-c", *sys.argv[1:]]
print(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""
MEASURING = """
import pathlib, subprocess, sys, time
from mqgrad.experiments.machine_load import OthersLoad, own_seconds
orphan, *arguments = sys.argv[1:]
load, started, before = OthersLoad(), time.monotonic(), own_seconds()
starter = [sys.executable, "-c", orphan, *arguments]
print(subprocess.run(starter, check=True, capture_output=True, text=True).stdout)
while not pathlib.Path(arguments[-1]).exists() and time.monotonic() < started + 60:
    time.sleep(0.02)
print(load.cores() * (time.monotonic() - started), own_seconds() - before)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc tells who is busy")


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """Made by a process that has spent its seconds, and lives on."""
    return tmp_path / "done"


@pytest.fixture
def child(done: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", WORK, str(done)]) as process:
        yield process
        process.kill()


def test_what_a_child_spends_is_our_own_while_it_lives_and_when_it_has_ended(
    done: Path, child: "subprocess.Popen[bytes]"
) -> None:
    before, busy, load, started = own_seconds(), busy_seconds(), OthersLoad(), time.monotonic()
    wait_for(done)
    assert own_seconds() - before > 0.8 * SPENT
    others = load.cores() * (time.monotonic() - started)
    assert others <= max(0.0, busy_seconds() - busy - 0.8 * SPENT)
    child.kill()
    child.wait()
    assert own_seconds() - before > 0.8 * SPENT


def test_what_a_stranger_spends_is_that_of_others(done: Path) -> None:
    """Measured in a process below which nothing else is at work, as builds may be below this one."""
    measuring = [sys.executable, "-c", MEASURING, ORPHAN, WORK, str(done)]
    printed = subprocess.run(measuring, check=True, capture_output=True, text=True, timeout=90).stdout
    pid, others, own = printed.split()
    os.kill(int(pid), signal.SIGKILL)
    assert float(others) > 0.5 * SPENT
    assert float(own) < 0.5 * SPENT


def test_a_name_that_is_cut_within_a_letter_is_read() -> None:
    """The kernel cuts names at 15 bytes; anybody's process ended a comparison so."""
    rename = "open('/proc/self/comm', 'wb').write(b'a' * 14 + 'ü'.encode()); print(flush=True); input()"
    command = [sys.executable, "-c", rename]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert own_seconds() > 0
        child.kill()
