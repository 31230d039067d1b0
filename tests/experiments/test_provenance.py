"""Which machine figures are said to come from."""

import datetime
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mqgrad.experiments.provenance import processor, provenance, script_origin

ZEN_4 = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n"
ZEN_5 = "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"


@pytest.mark.parametrize(
    ("cpuinfo", "told"),
    [
        (f"{ZEN_4}\n{ZEN_4}", ("AMD EPYC", "25", "17")),
        (f"{ZEN_5}\n{ZEN_4}", ("AMD EPYC", "26", "2")),
        ("BogoMIPS\t: 243.75\nCPU implementer\t: 0x41\n", (platform.machine(), None, None)),
        ("", (platform.machine(), None, None)),
    ],
)
def test_the_first_processor_is_told(cpuinfo: str, told: tuple[str | None, ...], tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo)
    assert tuple(processor(file).values()) == told


def test_where_the_kernel_tells_nothing_there_is_the_architecture(tmp_path: Path) -> None:
    assert processor(tmp_path / "cpuinfo")["cpu"] == platform.machine()
    assert set(processor()) <= set(provenance()["machine"])


def test_a_script_tells_its_command_and_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["measure.py", "--json", "figures.json"])
    origin = script_origin("torchrun --nproc-per-node 2")
    assert origin["command"] == "torchrun --nproc-per-node 2 measure.py --json figures.json"
    assert origin["date"] == datetime.date.today().isoformat()
    assert set(provenance()) < set(origin)
    assert origin["script_revision"] is None  # there is no such file


def test_a_script_tells_its_own_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    script = tmp_path / "experiments" / "benchmarks" / "measure.py"
    script.parent.mkdir(parents=True)
    script.touch()
    (tmp_path / "experiments" / "__init__.py").touch()
    git("init")
    git("add", ".")
    git("commit", "--message", "first")
    monkeypatch.setattr(sys, "argv", [str(script)])
    commit = git("rev-parse", "--short=12", "HEAD")
    assert script_origin()["script_revision"] == commit
    script.write_text("changed")
    assert script_origin()["script_revision"].startswith(f"{commit}+changes.")
