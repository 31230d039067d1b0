"""What a build does where something cannot be built."""

import os
import shutil
import subprocess
import sys
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
