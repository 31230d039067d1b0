"""The CUDA sources compile without warnings."""

import subprocess
from concurrent.futures import Future
from pathlib import Path

import nvcc
import pytest


@pytest.mark.timeout(300)
@pytest.mark.skipif(nvcc.NVCC is None, reason="there is no nvcc to compile with")
@pytest.mark.parametrize("source", nvcc.SOURCES, ids=lambda path: path.name)
def test_compiles_without_warnings(
    source: Path, compilations: dict[Path, Future[subprocess.CompletedProcess[str]]]
) -> None:
    result = compilations[source].result()
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_there_are_sources() -> None:
    assert len(nvcc.SOURCES) >= 4
