"""What tests of this folder share."""

import ctypes
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import emulated_cuda
import instruction_sets
import nvcc
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


@pytest.fixture(scope="session", autouse=True)
def compilations(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[subprocess.CompletedProcess[str]]]]:
    """Of the CUDA sources whose tests will run: while the tests before them run, which leave a core idle."""
    tests = [item for item in request.session.items if "/test_with_nvcc.py::" in item.nodeid]
    sources = [test.callspec.params["source"] for test in tests if hasattr(test, "callspec")]
    folder = tmp_path_factory.mktemp("objects")
    pool = ThreadPoolExecutor(2)
    yield {source: pool.submit(nvcc.compile_source, source, folder) for source in sources if nvcc.NVCC}
    pool.shutdown(cancel_futures=True)
