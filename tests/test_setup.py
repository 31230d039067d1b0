"""What a build does where something cannot be built, and what ``make setup`` does again."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[1] / "setup.py"
KERNELS = SETUP.parent / "cuda_ext" / "csrc"
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


def build_with_cuda(folder: Path) -> subprocess.CompletedProcess[str]:
    """As with a torch for CUDA that takes a folder for CUDA's."""
    asked = f"""
import runpy, torch.utils.cpp_extension
torch.version.cuda, torch.utils.cpp_extension.CUDA_HOME = "12.8", {str(folder)!r}
runpy.run_path("setup.py")
"""
    return subprocess.run(
        [sys.executable, "-c", asked, "--version"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_an_nvcc_that_does_not_run_is_said_and_left_out(tmp_path: Path, mode: int) -> None:
    """As of an installation for another machine."""
    shutil.copy(SETUP, tmp_path)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\nexit 126\n")
    nvcc.chmod(mode)
    build = build_with_cuda(tmp_path)
    assert build.returncode == 0, build.stderr
    assert "mqgrad: built without CUDA" in build.stderr
    assert "does not run" in build.stderr


def test_a_torch_for_cuda_without_an_nvcc_is_said(tmp_path: Path) -> None:
    shutil.copy(SETUP, tmp_path)
    build = build_with_cuda(tmp_path)
    assert build.returncode == 0, build.stderr
    assert f"mqgrad: built without CUDA: there is no {tmp_path / 'bin' / 'nvcc'}" in build.stderr


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None, reason="needs g++ for x86-64"
)
def test_flags_of_the_caller_change_neither_the_kernels_versions_nor_the_process(tmp_path: Path) -> None:
    """Compiled for one processor alone, g++ refuses versions for others; -Ofast links what flushes denormals."""
    shutil.copy(SETUP, tmp_path)
    sources = tmp_path / "cuda_ext" / "csrc"
    sources.mkdir(parents=True)
    for needed in [*KERNELS.glob("*.h"), KERNELS / "cpu_stochastic_codes.cpp"]:
        shutil.copy(needed, sources)
    flags = "-march=haswell -Ofast"
    subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", "built"],
        cwd=tmp_path,
        env={**os.environ, "CXX": "g++", "CC": "gcc", "CFLAGS": flags, "CXXFLAGS": flags},
        capture_output=True,
        timeout=100,
        check=True,
    )
    [library] = tmp_path.glob("built/**/_C*.so")
    load = f"import ctypes, os; ctypes.CDLL({str(library)!r}, os.RTLD_LAZY); assert 5e-324 * 1.0 > 0"
    subprocess.run([sys.executable, "-c", load], timeout=100, check=True)


# Stands in for a Python: tells its own name, and makes an environment whose pip does nothing.
PYTHON = """#!/bin/sh -e
[ "$1" = -c ] && exec echo "$0"
echo "venv" >> calls
case " $* " in *" --clear "*) rm -rf .venv ;; esac
mkdir -p .venv/bin
printf '#!/bin/sh\\necho "$@" >> calls\\n' > .venv/bin/pip
chmod +x .venv/bin/pip
"""
EVERYTHING = ["venv", "ninja torch", ".[train,dev]"]
PACKAGE_ALONE = [".[train,dev]"]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_setup_does_again_what_has_changed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(SETUP.with_name(name), tmp_path)
    for name in ("mqgrad", "cuda_ext", "trainers", "envs", "agents", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").touch()
    for name in ("python-a", "python-b"):
        (tmp_path / name).write_text(PYTHON)
        (tmp_path / name).chmod(0o755)
    assert done_by_setup(tmp_path, "PYTHON=./python-a") == EVERYTHING
    assert done_by_setup(tmp_path, "PYTHON=./python-a") == done_by_setup(tmp_path) == []
    (tmp_path / "envs" / "one.py").rename(tmp_path / "envs" / "other.py")
    assert (done_by_setup(tmp_path), done_by_setup(tmp_path)) == (PACKAGE_ALONE, [])
    (tmp_path / "envs" / "other.py").unlink()
    assert (done_by_setup(tmp_path), done_by_setup(tmp_path)) == (PACKAGE_ALONE, [])
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init"], check=True, capture_output=True)
    subprocess.run([*git, "commit", "--allow-empty", "--message", "one"], check=True, capture_output=True)
    assert (done_by_setup(tmp_path), done_by_setup(tmp_path)) == (PACKAGE_ALONE, [])
    (tmp_path / ".venv" / "of-python-a").touch()
    assert done_by_setup(tmp_path, "PYTHON=./python-b") == EVERYTHING
    assert done_by_setup(tmp_path) == []  # whatever python3 is
    assert not (tmp_path / ".venv" / "of-python-a").exists()


def done_by_setup(folder: Path, *arguments: str) -> list[str]:
    """What was made or installed, by the words that tell."""
    calls = folder / "calls"
    calls.write_text("")
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHON")}
    subprocess.run(
        ["make", "setup", *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return [word for line in calls.read_text().splitlines() for word in EVERYTHING if word in line]
