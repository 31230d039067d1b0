"""What tests of this folder share."""

import ctypes
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import emulated_cuda
import instruction_sets
import pytest


@pytest.fixture(scope="session")
def kernel_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The CPU kernels as they are shipped, with all their clones."""
    try:
        return instruction_sets.compile_kernels(tmp_path_factory.mktemp("kernels"))
    except instruction_sets.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[ctypes.CDLL]]]:
    """The CUDA sources for the CPU, by the file of their entry points; compiled while the first tests run."""
    if emulated_cuda.COMPILER is None:
        pytest.skip("there is no g++ to compile the emulation with")
    folder = tmp_path_factory.mktemp("emulation")
    with ThreadPoolExecutor(2) as pool:
        yield {
            source.stem: pool.submit(emulated_cuda.compiled, source, folder)
            for source in emulated_cuda.SOURCES
        }
