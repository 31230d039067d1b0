"""What the benchmarks of kernels, of the environment and of the wire write, from figures that are given."""

import contextlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import env_overhead
import kernel_speed
import pytest
import wire

from mqgrad.experiments.netlab.lab import NetLab


def run(script: Any, monkeypatch: pytest.MonkeyPatch, file: Path, *arguments: str) -> dict[str, Any]:
    """The file that the script writes."""
    monkeypatch.setattr(sys, "argv", [script.__name__, "--json", str(file), *arguments])
    script.main()
    return json.loads(file.read_text())


def test_every_call_of_every_program_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {"copy": [1.0, 2.0, 4.0], "read": [0.5, 1.0, 1.0], "encode 2": [0.25, 4.0, 1.0]}
    printed = {"instruction_set": "AVX2", "bytes": 2 * 10**9, "seconds": seconds}
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntest $1 = 3 || exit 1\necho '{json.dumps(printed)}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(kernel_speed.instruction_sets, "build", lambda *_: {"best": program, "AVX2": program})
    monkeypatch.setattr(kernel_speed, "compiler_version", lambda: "g++ 12")
    report = run(kernel_speed, monkeypatch, tmp_path / "speed.json", "--calls", "2", "--rounds", "3")
    assert [row["call"] for row in report["figures"]] == [0] * 6 + [1] * 6
    assert report["figures"][2] == {
        "instruction_set": "AVX2",
        "kernel": "encode 2",
        "call": 0,
        "best_gb_per_s": 8.0,
        "best_to_copy": 4.0,
        "best_to_read": 2.0,
        "median_gb_per_s": 2.0,
        "median_to_copy": 4.0,
        "median_to_read": 1.0,
    }
    assert {"machine", "versions", "revision", "date", "compiler", "others_cores", "rounds"} <= set(report)
    *_, last = capsys.readouterr().out.splitlines()
    assert last.split(maxsplit=3) == [
        "AVX2",
        "encode",
        "2",
        "8.0–8.0 GB/s, 4.00–4.00 of memmove, 2.00–2.00 of reading",
    ]


def test_every_pair_of_blocks_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [(0.010, 0.010 * ratio) for ratio in (1.02, 0.99, 1.01, 1.0, 1.03)]
    monkeypatch.setattr(env_overhead, "Distributed", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(env_overhead, "measure", lambda _: pairs)
    monkeypatch.setattr(env_overhead, "own_share", lambda _: 0.0046)
    report = run(env_overhead, monkeypatch, tmp_path / "overhead.json")
    assert report["pairs"] == [list(pair) for pair in pairs]
    assert report["own_share"] == 0.0046
    assert report["ratio_to_bare"] == pytest.approx([1.010, 0.990, 1.030], abs=1e-3)
    assert {"machine", "versions", "revision", "date", "others_cores", "workload"} <= set(report)
    assert "1.010 [0.990, 1.030] of a bare loop's; 0.46% outside" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "tcp"), [([], "cubic"), (["--tcp", "reno"], "reno")])
def test_the_wire_is_measured_with_the_congestion_control_that_the_file_tells(
    options: list[str], tcp: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    labs = []

    def run_on_lab(lab: NetLab, command: list[str], logs: Path, **_: object) -> types.SimpleNamespace:
        labs.append(lab)
        Path(command[2]).write_text(json.dumps({"figures": [{"bits": 4}]}))
        return types.SimpleNamespace(status=0)

    file = tmp_path / "wire.json"
    monkeypatch.setattr(wire, "run_on_new_lab", run_on_lab)
    monkeypatch.setattr(sys, "argv", ["wire.py", str(file), "--rates=10mbit,1gbit", *options])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="0"):
        wire.main()
    report = json.loads(file.read_text())
    assert [(lab.congestion_control, lab.link.rate_mbit_per_s) for lab in labs] == [
        (tcp, 10.0),
        (tcp, 1000.0),
    ]
    assert report["tcp"] == tcp
    assert set(report["machine"]) == {"cpu", "cpu_family", "cpu_model", "cores", "kernel"}
    assert report["figures"] == [{"bits": 4}] * 2


@pytest.mark.parametrize(
    ("rates", "rank", "told"),
    [
        ("100mbps", None, "--rates 100mbps: "),
        ("none", None, "--rates none: a wire without a rate cannot be full"),
        ("100mbit,1gbit", "0", "--rates 100mbit,1gbit: on the hosts of a lab give the lab's one rate"),
    ],
)
def test_a_wire_of_no_or_of_several_rates_is_refused_before_it_is_measured(
    rates: str,
    rank: str | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["wire.py", str(tmp_path / "wire.json"), "--rates", rates])
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit, match="2"):
        wire.main()
    assert told in capsys.readouterr().err


def test_a_wire_that_fails_shows_the_log_of_the_rank_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_on_lab(lab: NetLab, command: list[str], logs: Path, **_: object) -> types.SimpleNamespace:
        logs.mkdir()
        for rank in range(3):
            (logs / f"rank{rank}.stderr.log").write_text(f"told by rank {rank}\n")
        hosts = [
            types.SimpleNamespace(rank=rank, ending=e)
            for rank, e in enumerate(("stopped", "stopped", "failed"))
        ]
        return types.SimpleNamespace(status=1, outcome="rank 2 failed", hosts=hosts)

    monkeypatch.setattr(wire, "run_on_new_lab", run_on_lab)
    monkeypatch.setattr(sys, "argv", ["wire.py", str(tmp_path / "wire.json"), "--rates=1gbit"])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="1"):
        wire.main()
    assert "1gbit: rank 2 failed\ntold by rank 2" in capsys.readouterr().err
