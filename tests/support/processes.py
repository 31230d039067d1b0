"""Whether processes run, and that they do not."""

import time
from collections.abc import Iterable
from pathlib import Path


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_gone(pids: Iterable[int], within_seconds: float) -> None:
    pids, deadline = list(pids), time.monotonic() + within_seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if is_running(pid)]
