"""What a build does where something cannot be built."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[1] / "setup.py"
FAILS_TO_LINK = """#!/bin/sh
case " $* " in *" -shared "*) echo "ld: cannot find -lcudart" >&2; exit 1 ;; esac
exec c++ "$@"
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_what_cannot_be_linked_is_said_and_left_out(tmp_path: Path) -> None:
    """One trivial source in place of ours: the build goes on, and not in silence."""
    shutil.copy(SETUP, tmp_path)
    left_over = (
        tmp_path
        / "build"
        / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        / "mqgrad"
        / "cuda_ext"
    )
    left_over.mkdir(parents=True)
    (left_over / "_C.abi3.so").write_bytes(b"of an earlier build")
    sources = tmp_path / "cuda_ext" / "csrc"
    sources.mkdir(parents=True)
    (sources / "one.cpp").write_text("int one() { return 1; }\n")
    compiler = tmp_path / "compiler"
    compiler.write_text(FAILS_TO_LINK)
    compiler.chmod(0o755)
    build = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=tmp_path,
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    assert "mqgrad: the extension was not built" in build.stderr
    assert "the torch reference will be used" in build.stderr
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_an_nvcc_that_does_not_run_is_said_and_left_out(tmp_path: Path, mode: int) -> None:
    """As of an installation for another machine."""
    shutil.copy(SETUP, tmp_path)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\nexit 126\n")
    nvcc.chmod(mode)
    asked = "import torch, runpy; torch.version.cuda = '12.8'; runpy.run_path('setup.py')"
    build = subprocess.run(
        [sys.executable, "-c", asked, "--version"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    assert "mqgrad: built without CUDA" in build.stderr
    assert "does not run" in build.stderr
