"""Builds the C++ extension and notes the commit; everything else about the package is in pyproject.toml.

The extension uses PyTorch's stable ABI only, so one binary serves every Python from 3.10 and every torch from 2.10;
with CUDA kernels, every torch for CUDA of the same major version. With any other the package runs on the torch
reference, as where there was no working compiler when it was installed.
"""

import os
import platform
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

SOURCES = Path("cuda_ext/csrc")
STABLE_ABI = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]  # torch 2.10
# A contracted multiply-add would make the bytes depend on the compiler, as -ffast-math in the caller's CFLAGS would.
CXX_FLAGS = [
    "-fno-fast-math",
    "-O3",
    "-g0",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    *STABLE_ABI,
]
if platform.machine() in ("x86_64", "AMD64"):
    # Kernels choose their instructions when they are loaded; compiled for one processor, as -march=native in the
    # caller's CFLAGS would have it, some of their versions cannot take in the functions that they share.
    CXX_FLAGS += ["-march=x86-64", "-mtune=generic"]
# Linked with -ffast-math or -Ofast, as the caller's flags may say, a library has the whole process flush denormals.
LINK_FLAGS = ["-fno-fast-math", "-fno-unsafe-math-optimizations", "-O3"]
NVCC_FLAGS = ["-O3", "-std=c++17", "-fmad=false", "-DUSE_CUDA", *STABLE_ABI]
NVCC = Path(CUDA_HOME or "/usr/local/cuda") / "bin" / "nvcc"
# Free-threaded Pythons have none.
HAS_LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")
# Newer cards run the last one's PTX. TORCH_CUDA_ARCH_LIST in the environment replaces these.
CUDA_ARCHITECTURES = ["75,code=sm_75", "80,code=sm_80", "90,code=sm_90", "90,code=compute_90"]


class OptionalBuildExtension(BuildExtension):
    """Carries on without what cannot be built, CUDA first: the reference computes the same bytes."""

    def build_extensions(self) -> None:
        self.force = True  # what an earlier build has left may be older than the flags, or without CUDA
        try:
            super().build_extensions()
        except Exception as error:
            self._build_less(self.extensions[0], error)

    def _build_less(self, failed: Extension, error: Exception) -> None:
        if any(source.endswith(".cu") for source in failed.sources):
            print(f"mqgrad: not built with CUDA ({error}); trying without", file=sys.stderr)
            vars(failed).update(vars(extension(with_cuda=False)))
            self.build_extensions()
            return
        # If it were from the start, setuptools would take a failure for an answer, and nothing less would be tried.
        failed.optional = True
        Path(self.get_ext_fullpath(failed.name)).unlink(missing_ok=True)  # of an earlier build
        if self.editable_mode:
            for loaded in SOURCES.parent.glob("_C*.so"):
                loaded.unlink()
        print(
            f"mqgrad: the extension was not built ({error}); the torch reference will be used",
            file=sys.stderr,
        )


class BuildWithRevision(build_py):
    """Writes the commit of the checkout into the package, for ``git_revision``; nothing where git knows none."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # the files of the checkout are what runs
        noted = Path(self.build_lib, "mqgrad", "revision.txt")
        noted.unlink(missing_ok=True)  # of an earlier build
        revision = runpy.run_path("trainers/versions.py")["git_revision"]()
        if revision is not None:
            noted.write_text(f"{revision}\n")


def builds_cuda() -> bool:
    """Whether torch is a CUDA build and its nvcc is here; a GPU need not be: wheels are built without one."""
    if torch.version.cuda is None:
        return False
    if not NVCC.exists():
        print(
            f"mqgrad: built without CUDA: there is no {NVCC} (CUDA_HOME may name its folder)", file=sys.stderr
        )
        return False
    try:
        version = subprocess.check_output([NVCC, "--version"], text=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"mqgrad: built without CUDA: {NVCC} does not run ({error})", file=sys.stderr)
        return False
    release = re.search(r"release (\d+)\.", version)
    if release is not None and int(release[1]) == int(torch.version.cuda.split(".")[0]):
        return True
    print(
        f"mqgrad: built without CUDA: torch is for CUDA {torch.version.cuda}, {NVCC} is of another major version",
        file=sys.stderr,
    )
    return False


def cuda_library_folders() -> list[str]:
    """Where nvcc has its libraries.

    Torch looks above the first nvcc on the path, which may be a script that calls another one, with none beside it.
    """
    command = [NVCC, "--dryrun", "-x", "cu", os.devnull]  # says what it would do
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return re.findall(r'"-L(.+?)"', said.partition("LIBRARIES=")[2].partition("\n")[0])


def nvcc_flags() -> list[str]:
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return NVCC_FLAGS
    return NVCC_FLAGS + [f"-gencode=arch=compute_{architecture}" for architecture in CUDA_ARCHITECTURES]


def extension(*, with_cuda: bool) -> Extension:
    cpp = sorted(map(str, SOURCES.glob("*.cpp")))
    cuda = sorted(map(str, SOURCES.glob("*.cu")))
    build = CUDAExtension if with_cuda else CppExtension
    return build(
        "mqgrad.cuda_ext._C",
        cpp + (cuda if with_cuda else []),
        depends=sorted(map(str, [*SOURCES.glob("*.h"), *SOURCES.glob("*.cu")])),  # so an sdist has them
        extra_compile_args={"cxx": CXX_FLAGS + ["-DUSE_CUDA"] * with_cuda, "nvcc": nvcc_flags()},
        extra_link_args=LINK_FLAGS,
        library_dirs=cuda_library_folders() if with_cuda else [],
        py_limited_api=HAS_LIMITED_API,
    )


setup(
    ext_modules=[extension(with_cuda=builds_cuda())],
    cmdclass={"build_ext": OptionalBuildExtension, "build_py": BuildWithRevision},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if HAS_LIMITED_API else {},
)
