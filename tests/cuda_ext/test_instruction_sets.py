"""Every kernel writes the same bytes whichever of its clones the loader chooses, and on an emulated ARM."""

import subprocess
from pathlib import Path

import instruction_sets
import pytest

KERNEL_BYTES = [instruction_sets.FOLDER / "kernel_bytes.cpp"]
ASCENDING = ["baseline", "AVX2", "AVX-512"]


@pytest.fixture(scope="module")
def programs(kernel_objects: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return instruction_sets.build(KERNEL_BYTES, tmp_path_factory.mktemp("programs"), kernels=kernel_objects)


def digests(*command: str | Path) -> tuple[str, list[str]]:
    """The instruction set that was chosen, and one line a kernel and its settings."""
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    chosen, *lines = result.stdout.splitlines()
    return chosen, lines


@pytest.mark.parametrize("told", ["AVX2", "baseline"])
def test_same_bytes_as_with_the_best_of_this_processor(programs: dict[str, Path], told: str) -> None:
    best, expected = digests(programs["best"])
    if ASCENDING.index(told) >= ASCENDING.index(best):
        pytest.skip(f"the best of this processor is {best}")
    chosen, lines = digests(programs[told])
    assert chosen == told
    assert len(lines) > 700
    assert lines == expected


def test_same_bytes_on_an_emulated_arm(programs: dict[str, Path], tmp_path: Path) -> None:
    try:
        command = instruction_sets.build_for_arm(KERNEL_BYTES, tmp_path)
    except instruction_sets.Unavailable as reason:
        pytest.skip(str(reason))
    chosen, lines = digests(*command)
    assert chosen == "AArch64"
    assert lines == digests(programs["best"])[1]
