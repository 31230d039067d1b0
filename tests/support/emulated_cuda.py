"""Compiles CUDA sources for the CPU, against tests/support/cuda_emulation, and passes tensors to them."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.cpp_extension import include_paths

EMULATION = Path(__file__).parent / "cuda_emulation"
KERNELS = Path(__file__).parents[2] / "cuda_ext" / "csrc"
FLAGS = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
COMPILER = shutil.which("g++")
DTYPE_CODES = {torch.float32: 6, torch.float64: 7, torch.float16: 5, torch.bfloat16: 15}


def compiled(source: str, folder: Path) -> ctypes.CDLL:
    """The entry points of a file of tests/support/cuda_emulation."""
    assert COMPILER is not None
    library = folder / "kernels.so"
    includes = [f"-I{EMULATION}", f"-I{KERNELS}", *(f"-isystem{path}" for path in include_paths())]
    command = [COMPILER, *FLAGS, *includes, str(EMULATION / source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=110)
    return ctypes.CDLL(str(library))


def pointer(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


def assert_same(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)
