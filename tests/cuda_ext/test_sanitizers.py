"""Short runs of `make sanitize` and `make fuzz`: bytes from anywhere make no kernel leave its buffers."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import fuzz_kernels
import pytest


def run(build: Callable[[Path], Path], arguments: list[str], folder: Path) -> str:
    try:
        program = build(folder)
    except fuzz_kernels.Unavailable as reason:
        pytest.skip(str(reason))
    result = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, cwd=folder, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout + result.stderr


def test_random_inputs_under_the_sanitizers(tmp_path: Path) -> None:
    assert run(fuzz_kernels.build_sanitized, ["1000"], tmp_path) == "1000 inputs\n"


def test_ten_seconds_of_coverage_guided_fuzzing(tmp_path: Path) -> None:
    limits = ["-max_total_time=10", "-max_len=20000", "-seed=1"]
    assert "Done " in run(fuzz_kernels.build_fuzzer, limits, tmp_path)
