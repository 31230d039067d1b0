"""Processes that are to end with the one that started them."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

WAITS = """
import sys, time
from mqgrad.experiments.signals import end_with_parent
end_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
STARTS = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-P', '-c', {WAITS!r}]).pid, flush=True)"


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
