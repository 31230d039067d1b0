"""What tests of this folder share."""

import ctypes
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import emulated_cuda
import pytest


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
