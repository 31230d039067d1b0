"""What tests on shaped hosts share."""

import os
import subprocess
import sys

import pytest

_PROBE = f"mqgrad-probe-{os.getpid()}"


def why_no_lab() -> str:
    """Why there can be no lab here; empty if there can: then one that cannot be built is an error, not a skip."""
    add = f"ip netns add {_PROBE}"
    shape = f"tc -n {_PROBE} qdisc add dev lo root htb"
    try:
        for command in (add, shape):
            subprocess.run(command.split(), check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return getattr(error, "stderr", "") or str(error)
    finally:
        subprocess.run(["sh", "-c", f"ip netns delete {_PROBE}"], capture_output=True, check=False)
    return ""


needs_lab = pytest.mark.skipif(bool(reason := why_no_lab()), reason=f"no shaped network here: {reason}")


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs Python code."""
    return [sys.executable, "-c", code, *map(str, arguments)]
