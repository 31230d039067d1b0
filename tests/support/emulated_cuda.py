"""The CUDA sources compiled for the CPU, against tests/support/cuda_emulation, and called with tensors."""

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.cpp_extension import include_paths

EMULATION = Path(__file__).parent / "cuda_emulation"
KERNELS = Path(__file__).parents[2] / "cuda_ext" / "csrc"
SOURCES = sorted(EMULATION.glob("*.cpp"))
FLAGS = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
FLAGS += ["-U_FORTIFY_SOURCE"]  # it takes a jump to another stack for an error
COMPILER = shutil.which("g++")
DTYPE_CODES = {torch.float32: 6, torch.float64: 7, torch.float16: 5, torch.bfloat16: 15}


def compiled(source: Path, folder: Path) -> ctypes.CDLL:
    """The entry points of a file of tests/support/cuda_emulation."""
    assert COMPILER is not None
    library = folder / f"{source.stem}.so"
    includes = [f"-I{EMULATION}", f"-I{KERNELS}", *(f"-isystem{path}" for path in include_paths())]
    subprocess.run([COMPILER, *FLAGS, *includes, str(source), "-o", str(library)], check=True, timeout=110)
    return ctypes.CDLL(str(library))


def status(entry_point: Callable[..., int], *arguments: object) -> int:
    """What CUDA says of the call. Tensors go by their addresses, data types by their codes, None as null."""
    return entry_point(*map(_as_c, arguments))


def run(entry_point: Callable[..., int], *arguments: object) -> None:
    """Call it, and fail unless its kernels ran to their ends."""
    assert status(entry_point, *arguments) == 0


def _as_c(value: object) -> object:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, torch.dtype):
        return ctypes.c_int64(DTYPE_CODES[value])
    if isinstance(value, float):
        return ctypes.c_double(value)
    return ctypes.c_int64(value) if isinstance(value, int) else value


@contextlib.contextmanager
def guarded(numel: int, dtype: torch.dtype = torch.float32, shift: int = 0) -> Iterator[Tensor]:
    """A tensor, ``shift`` elements behind an address for vector loads; the memory around it must stay as it is."""
    memory, first = torch.full((numel + 32,), 171, dtype=dtype), 16 + shift
    yield memory[first : first + numel]
    assert (memory[:first] == 171).all()
    assert (memory[first + numel :] == 171).all()
