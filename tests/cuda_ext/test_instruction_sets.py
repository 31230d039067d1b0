"""Every kernel writes the same bytes whichever of its clones the loader chooses, and on an emulated ARM."""

import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest
from built import built

ASCENDING = ["baseline", "AVX2", "AVX-512"]


def digests(*command: str | Path) -> tuple[str, list[str]]:
    """The instruction set that was chosen, and one line a kernel and its settings."""
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    chosen, *lines = result.stdout.splitlines()
    return chosen, lines


@pytest.mark.timeout(300)  # to build it
@pytest.mark.parametrize("told", ["AVX2", "baseline"])
def test_same_bytes_as_with_the_best_of_this_processor(programs: Future[dict[str, Path]], told: str) -> None:
    best, expected = digests(built(programs)["best"])
    if ASCENDING.index(told) >= ASCENDING.index(best):
        pytest.skip(f"the best of this processor is {best}")
    chosen, lines = digests(built(programs)[told])
    assert chosen == told
    assert len(lines) > 700
    assert lines == expected


@pytest.mark.timeout(300)
def test_same_bytes_on_an_emulated_arm(
    programs: Future[dict[str, Path]], arm_command: Future[list[str]]
) -> None:
    chosen, lines = digests(*built(arm_command))
    assert chosen == "AArch64"
    assert lines == digests(built(programs)["best"])[1]
