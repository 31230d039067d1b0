"""Builds the C++ extension; everything else about the package is in pyproject.toml.

The extension uses PyTorch's stable ABI only, so one binary serves every Python from 3.10 and every torch from 2.10.
Without a working compiler the package installs without it and runs on the torch reference.
"""

import shutil
import sys
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

SOURCES = Path("cuda_ext/csrc")
STABLE_ABI = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]  # torch 2.10
# A contracted multiply-add would make the bytes depend on the compiler.
CXX_FLAGS = [
    "-O3",
    "-g0",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    *STABLE_ABI,
]
NVCC_FLAGS = ["-O3", "-std=c++17", "-fmad=false", "-DUSE_CUDA", *STABLE_ABI]


class OptionalBuildExtension(BuildExtension):
    """Carries on without the extension where it cannot be built: the reference computes the same bytes."""

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except Exception as error:
            print(
                f"mqgrad: the extension was not built ({error}); the torch reference will be used",
                file=sys.stderr,
            )


def extension() -> Extension:
    cpp = sorted(map(str, SOURCES.glob("*.cpp")))
    cuda = sorted(map(str, SOURCES.glob("*.cu")))
    # What can be built counts, not whether this machine has a GPU: wheels are built on machines without one.
    with_cuda = bool(cuda) and torch.version.cuda is not None and shutil.which("nvcc") is not None
    build = CUDAExtension if with_cuda else CppExtension
    return build(
        "mqgrad.cuda_ext._C",
        cpp + (cuda if with_cuda else []),
        depends=sorted(map(str, SOURCES.glob("*.h"))),
        extra_compile_args={"cxx": CXX_FLAGS + ["-DUSE_CUDA"] * with_cuda, "nvcc": NVCC_FLAGS},
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[extension()],
    cmdclass={"build_ext": OptionalBuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
