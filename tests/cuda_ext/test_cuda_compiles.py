"""The CUDA sources compile wherever there is an nvcc, also with a CPU build of torch: the stable ABI is enough."""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "cuda_ext" / "csrc").glob("*.cu"))
FLAGS = ["-c", "-O3", "-std=c++17", "-fmad=false", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
WARNINGS = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
WARNINGS += ["-Xptxas", "--warn-on-spills,--warn-on-local-memory-usage"]  # registers are what makes them fast
NVCC = shutil.which("nvcc")

Compilation = Future[subprocess.CompletedProcess[str]]


def shipped_architectures() -> list[str]:
    found = re.search(r"^CUDA_ARCHITECTURES = (\[.*\])$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert found is not None
    return ast.literal_eval(found[1])


def compile_source(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    architectures = shipped_architectures()
    if "__global__" not in source.read_text():
        architectures = architectures[:1]  # host code only, the same for all of them
    command = [NVCC or "", *FLAGS, *WARNINGS, *(f"-gencode=arch=compute_{each}" for each in architectures)]
    command += [f"-isystem={path}" for path in include_paths()]
    command += [str(source), "-o", str(folder / f"{source.stem}.o")]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def compilations(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Compilation]]:
    """Of the sources whose tests will run, two at a time."""
    folder = tmp_path_factory.mktemp("objects")
    tests = [item for item in request.session.items if "compilations" in getattr(item, "fixturenames", ())]
    sources = [test.callspec.params["source"] for test in tests]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        yield {source: pool.submit(compile_source, source, folder) for source in sources}


@pytest.mark.timeout(300)
@pytest.mark.skipif(NVCC is None, reason="there is no nvcc to compile with")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_compiles_without_warnings(source: Path, compilations: dict[Path, Compilation]) -> None:
    result = compilations[source].result()
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_there_are_sources() -> None:
    assert len(SOURCES) >= 4
