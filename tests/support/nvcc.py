"""Compile the CUDA sources as they are shipped: also beside a CPU build of torch, for the stable ABI is enough."""

import ast
import re
import shutil
import subprocess
import time
from pathlib import Path

from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "cuda_ext" / "csrc").glob("*.cu"))
FLAGS = ["-c", "-O3", "-std=c++17", "-fmad=false", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
WARNINGS = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
WARNINGS += ["-Xptxas", "--warn-on-spills,--warn-on-local-memory-usage"]  # registers are what makes them fast
NVCC = shutil.which("nvcc")


def shipped_architectures() -> list[str]:
    found = re.search(r"^CUDA_ARCHITECTURES = (\[.*\])$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert found is not None
    return ast.literal_eval(found[1])


def compile_source(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    assert NVCC is not None
    architectures = shipped_architectures()
    if "__global__" not in source.read_text():
        architectures = architectures[:1]  # host code only, the same for all of them
    command = [NVCC, *FLAGS, *WARNINGS]
    command += [f"-gencode=arch=compute_{each}" for each in architectures]
    command += [f"-isystem={path}" for path in include_paths()]
    command += [str(source), "-o", str(folder / f"{source.stem}.o")]
    try:
        return _run(command)
    except OSError:  # a busy machine has once failed to start it, by "Bad address"
        time.sleep(1)
        return _run(command)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
