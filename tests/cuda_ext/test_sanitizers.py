"""Short runs of `make sanitize` and `make fuzz`: bytes from anywhere make no kernel leave its buffers."""

import subprocess
from pathlib import Path

import fuzz_kernels
import pytest
from instruction_sets import Unavailable


def run(program: Path, *arguments: str) -> str:
    result = subprocess.run(
        [program, *arguments], capture_output=True, text=True, cwd=program.parent, timeout=60, check=False
    )
    assert result.returncode == 0, f"{program.name} ended with {result.returncode}: {result.stderr[-4000:]}"
    return result.stdout + result.stderr


def test_random_inputs_under_the_sanitizers(tmp_path: Path) -> None:
    try:
        program = fuzz_kernels.build_sanitized(tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert run(program, "3000").startswith("3000 inputs, ")


def test_random_inputs_between_guard_pages_with_every_clone(tmp_path: Path) -> None:
    try:
        programs = fuzz_kernels.build_guarded(tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    printed = {told: run(program, "3000") for told, program in programs.items()}
    assert printed["baseline"] == "3000 inputs, baseline\n"
    assert printed["AVX2"] in ("3000 inputs, AVX2\n", printed["baseline"])
    assert printed["best"] in ("3000 inputs, AVX-512\n", printed["AVX2"])


def test_ten_seconds_of_coverage_guided_fuzzing(tmp_path: Path) -> None:
    try:
        program = fuzz_kernels.build_fuzzer(tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert "Done " in run(program, "-max_total_time=10", "-max_len=20000", "-seed=1")
