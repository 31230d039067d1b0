"""What tests of this folder share: builds, each begun when a test asks for it, two at a time."""

import ctypes
import subprocess
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import emulated_cuda
import fuzz_kernels
import instruction_sets
import nvcc
import pytest
from instruction_sets import KERNEL_BYTES


@pytest.fixture(scope="session")
def background() -> Iterator[Executor]:
    pool = ThreadPoolExecutor(2)
    yield pool
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def kernel_objects(background: Executor, tmp_path_factory: pytest.TempPathFactory) -> Future[list[Path]]:
    """The CPU kernels as they are shipped, with all their clones."""
    return background.submit(instruction_sets.compile_kernels, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def programs(
    background: Executor, kernel_objects: Future[list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Future[dict[str, Path]]:
    """What tells the bytes that kernels write, by the clones that it is told to have."""
    folder = tmp_path_factory.mktemp("programs")
    return background.submit(
        lambda: instruction_sets.build(KERNEL_BYTES, folder, kernels=kernel_objects.result())
    )


@pytest.fixture(scope="session")
def arm_command(background: Executor, tmp_path_factory: pytest.TempPathFactory) -> Future[list[str]]:
    """The same on an emulated ARM."""
    return background.submit(instruction_sets.build_for_arm, KERNEL_BYTES, tmp_path_factory.mktemp("arm"))


@pytest.fixture(scope="session")
def guarded(
    background: Executor, kernel_objects: Future[list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Future[dict[str, Path]]:
    """Kernels between guard pages, by their clones."""
    folder = tmp_path_factory.mktemp("guarded")
    return background.submit(lambda: fuzz_kernels.build_guarded(folder, kernels=kernel_objects.result()))


@pytest.fixture(scope="session")
def fuzzer(background: Executor, tmp_path_factory: pytest.TempPathFactory) -> Future[Path]:
    return background.submit(fuzz_kernels.build_fuzzer, tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="session")
def sanitized(background: Executor, tmp_path_factory: pytest.TempPathFactory) -> Future[Path]:
    """Kernels under the sanitizers."""
    return background.submit(fuzz_kernels.build_sanitized, tmp_path_factory.mktemp("sanitized"))


@pytest.fixture(scope="session")
def compilations(
    request: pytest.FixtureRequest, background: Executor, tmp_path_factory: pytest.TempPathFactory
) -> dict[Path, Future[subprocess.CompletedProcess[str]]]:
    """Of the CUDA sources whose tests will run."""
    tests = [item for item in request.session.items if "/test_with_nvcc.py::" in item.nodeid]
    sources = [test.callspec.params["source"] for test in tests if hasattr(test, "callspec")]
    folder = tmp_path_factory.mktemp("objects")
    return {source: background.submit(nvcc.compile_source, source, folder) for source in sources if nvcc.NVCC}


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
