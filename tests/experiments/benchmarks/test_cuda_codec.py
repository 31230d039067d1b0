"""The script that builds, checks and times the CUDA kernels, where there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[3] / "experiments" / "benchmarks"
WRONG_BYTES = """
import sys
sys.path.insert(0, {folder!r})
import cuda_checks
from mqgrad import cuda_ext
encode = cuda_ext.encode_minmax
calls = []
def wrong(x, bits):
    calls.append(x)
    return encode(x, bits) ^ (len(calls) % 2)
cuda_ext.encode_minmax = wrong
sys.argv = ["cuda_checks.py", "--sizes", "tiny", "--device", "cpu"]
cuda_checks.main()
"""


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
    assert set(report["checks"]["small"]) >= {"uniform", "rotated", "sparse", "bfloat16", "minmax", "slices"}
    assert {row["bits"] for row in report["rows"]} == {*range(1, 9), 16, 1 / 2, 1 / 8, 1 / 64}


def test_a_difference_is_named_and_does_not_hide_the_other_checks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRONG_BYTES.format(folder=str(BENCHMARKS))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tiny minmax: AssertionError: payload, 1 x 1, bits=1" in done.stdout
    assert "tiny slices: same" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_claimed(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "cuda_codec.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode != 0
    assert "no GPU here" in done.stderr
