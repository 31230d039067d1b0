"""Build programs that run the kernels with the instructions of another processor than this one.

The kernels are compiled once, as for the extension. Each program is linked three times: as it is, and with a
chosen_instructions.cpp that hides AVX-512, or AVX2 as well, from the loader, which chooses among the kernels' clones.
For ARM they are cross-compiled and emulated.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.utils.cpp_extension import include_paths

FOLDER = Path(__file__).parent
KERNELS = FOLDER.parents[1] / "cuda_ext" / "csrc"
SOURCES = sorted(KERNELS.glob("cpu_*.cpp"))
KERNEL_BYTES = [FOLDER / "kernel_bytes.cpp"]
"""What tells the bytes that kernels write."""
FEATURES = {"best": None, "AVX2": 1 << 10, "baseline": 0}
"""What the loader is told of the processor, in libgcc's bits; None: the truth."""
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]  # setup.py's
FLAGS += ["-DTORCH_TARGET_VERSION=0x020a000000000000", f"-I{KERNELS}"]


class Unavailable(Exception):
    """This machine cannot build or run it; the message says why."""


def compile_kernels(folder: Path) -> list[Path]:
    """Compile the kernels, for any number of :func:`build`.

    Raises:
        Unavailable: there is no g++ 12 or later for x86-64 and glibc, so that kernels have no clones.
    """
    compiler = _compiler()
    _require_clones(compiler)
    jobs = {folder / f"{source.stem}.o": [str(source)] for source in SOURCES}
    _compile(_command(compiler), jobs)
    return list(jobs)


def build(
    harness: list[Path], folder: Path, defines: Sequence[str] = (), kernels: Sequence[Path] | None = None
) -> dict[str, Path]:
    """Compile what runs the kernels, and return the programs, one for each entry of :data:`FEATURES`.

    Args:
        defines: further flags of the harness's compiler.
        kernels: what :func:`compile_kernels` returned; None: compile them, too.

    Raises:
        Unavailable: as :func:`compile_kernels`.
    """
    compiler = _compiler()
    if kernels is None:
        kernels = compile_kernels(folder)
    _require_clones(compiler)
    jobs = {folder / f"{source.stem}.o": [str(source)] for source in harness}
    objects, choices = [*kernels, *jobs], {}
    for told, bits in FEATURES.items():
        if bits is not None:
            choices[told] = folder / f"{told}.o"
            jobs[choices[told]] = [str(FOLDER / "chosen_instructions.cpp"), f"-DMQ_FEATURES={bits}"]
    _compile(_command(compiler, defines), jobs)
    programs = {told: folder / f"{harness[0].stem}-{told}" for told in FEATURES}
    for told, program in programs.items():
        chosen = [choices[told]] if told in choices else []
        _run([compiler, *map(str, [*objects, *chosen]), "-o", str(program)])
    return programs


def build_for_arm(harness: list[Path], folder: Path, defines: Sequence[str] = ()) -> list[str]:
    """Cross-compile the kernels and what runs them for AArch64, and return the command that emulates the program.

    Raises:
        Unavailable: there is no cross compiler or no emulator (Debian: g++-aarch64-linux-gnu, qemu-user-static).
    """
    compiler, program = "aarch64-linux-gnu-g++", folder / f"{harness[0].stem}-aarch64"
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if shutil.which(compiler) is None or emulator is None:
        raise Unavailable(f"there is no {compiler}, or no qemu-aarch64")
    jobs = {folder / f"{source.stem}-aarch64.o": [str(source)] for source in [*SOURCES, *harness]}
    _compile(_command(compiler, defines), jobs)
    _run([compiler, "-static", *map(str, jobs), "-o", str(program)])
    return [emulator, str(program)]


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _command(compiler: str, defines: Sequence[str] = ()) -> list[str]:
    """What compiles a file, up to the names of the object and of the file."""
    return [compiler, *FLAGS, *defines, *(f"-isystem{path}" for path in include_paths()), "-c", "-o"]


def _compile(command: list[str], jobs: Mapping[Path, list[str]]) -> None:
    """Make files, each by the command, its name and its own arguments; two at a time."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda made: _run([*command, str(made), *jobs[made]]), jobs))


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=600)


def _require_clones(compiler: str) -> None:
    if shutil.which(compiler) is None:
        raise Unavailable(f"there is no {compiler}")
    command = [compiler, f"-I{KERNELS}", "-include", "clones.h", "-dM", "-E", "-x", "c++", "/dev/null"]
    macros = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    if "#define MQ_VERSIONS" not in macros:
        raise Unavailable(f"{compiler} compiles one version of the kernels here")
