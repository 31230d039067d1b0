"""Rank 0's output as it comes."""

import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mqgrad.experiments.netlab.follow import Rank0Output

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FOLLOW = """
import sys
from pathlib import Path
from mqgrad.experiments.netlab.follow import Rank0Output

output = Rank0Output(Path(sys.argv[1]))
output.end([])
"""


class Unbuffered(io.RawIOBase):
    """Writes a few bytes at a time, as a pipe does while signals come."""

    def __init__(self) -> None:
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, text: "ReadableBuffer") -> int:
        self.written += bytes(text)[:7]
        return min(len(bytes(text)), 7)


def test_an_unbuffered_stream_gets_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PYTHONUNBUFFERED is set, as in many containers."""
    (tmp_path / "rank0.stdout.log").write_text("a line\n" * 30)
    (tmp_path / "rank0.stderr.log").touch()
    unbuffered = Unbuffered()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=unbuffered))
    Rank0Output(tmp_path).end([])
    assert unbuffered.written == b"a line\n" * 30


def test_a_stream_that_is_closed_gets_nothing(tmp_path: Path) -> None:
    """As of a daemon's command."""
    (tmp_path / "rank0.stdout.log").write_text("a line\n")
    (tmp_path / "rank0.stderr.log").write_text("a word of rank 0's\n")
    code = f"import sys\nsys.stdout = None\n{FOLLOW}"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "a word of rank 0's\n")


def test_where_output_cannot_be_written_the_log_is_named_once(tmp_path: Path) -> None:
    """As on a disk that is full."""
    (tmp_path / "rank0.stdout.log").write_text("a line\n" * 3)
    (tmp_path / "rank0.stderr.log").write_text("a word of rank 0's\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", FOLLOW, str(tmp_path)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert "Traceback" not in done.stderr
    assert done.stderr.count(f"rank 0's output is in {tmp_path}/rank0.stdout.log alone: ") == 1
    assert "a word of rank 0's" in done.stderr
