"""The CUDA sources compile wherever there is an nvcc, also with a CPU build of torch: the stable ABI is enough."""

import shutil
import subprocess
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

SOURCES = sorted((Path(__file__).parents[2] / "cuda_ext" / "csrc").glob("*.cu"))
FLAGS = ["-c", "-O3", "-std=c++17", "-fmad=false", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
WARNINGS = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
WARNINGS += ["-Xptxas", "--warn-on-spills,--warn-on-local-memory-usage"]  # registers are what makes them fast
ARCHITECTURES = [f"-gencode=arch=compute_{version},code=sm_{version}" for version in (80, 90)]
NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="there is no nvcc to compile with")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_compiles_without_warnings(source: Path, tmp_path: Path) -> None:
    assert NVCC is not None
    includes = [f"-isystem={path}" for path in include_paths()]
    command = [NVCC, *FLAGS, *WARNINGS, *ARCHITECTURES, "--threads", "2", *includes, str(source)]
    result = subprocess.run(
        [*command, "-o", str(tmp_path / "object.o")], capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_there_are_sources() -> None:
    assert len(SOURCES) >= 4
