"""The script that builds, checks and times the CUDA kernels, where there is no GPU."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import cuda_checks
import cuda_codec
import pytest
import torch

from mqgrad import cuda_ext

BENCHMARKS = Path(__file__).parents[3] / "experiments" / "benchmarks"


def test_a_dry_run_checks_and_times_everything(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    command = [sys.executable, str(BENCHMARKS / "cuda_codec.py"), "--dry-run", "--output", str(output)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert {name: stage["outcome"] for name, stage in report["stages"].items()} == {
        "small": "ok",
        "timings": "ok",
    }
    checked = {"uniform", "rotated", "sparse", "bfloat16", "minmax", "slices", "figures"}
    assert set(report["checks"]["small"]) >= checked
    assert {row["bits"] for row in report["rows"]} == {*range(1, 9), 16, 32, 1 / 2, 1 / 8, 1 / 64}


def test_a_difference_is_named_and_does_not_hide_the_other_checks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode, flipped = cuda_ext.encode_minmax, itertools.cycle([1, 0])
    monkeypatch.setattr(cuda_ext, "encode_minmax", lambda x, bits: encode(x, bits) ^ next(flipped))
    monkeypatch.setattr(sys, "argv", ["cuda_checks.py", "--sizes", "tiny", "--device", "cpu"])
    with pytest.raises(SystemExit, match="1"):
        cuda_checks.main()
    told = capsys.readouterr().out
    assert "tiny minmax: AssertionError: payload, 1 x 1, bits=1" in told
    assert "tiny slices: same" in told


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cuda_codec.py"])
    with pytest.raises(SystemExit, match="no GPU here"):
        cuda_codec.main()
