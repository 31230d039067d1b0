"""The commands ``ip`` and ``tc`` of iproute2, which configure the kernel's network."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

_TOOL_SECONDS = 20.0  # limit of one ip or tc call
_REMEDY = (
    "without it, links are emulated in the process by mqgrad compare --links emulated:RATE, and by mqgrad run and "
    "train with --link-mbit-per-s RATE"
)


class NetLabError(OSError):
    """The lab cannot be built here, or the kernel refused a step of it."""


def check_available() -> None:
    """Raises NetLabError, with what to use instead, where a lab cannot be built."""
    if sys.platform != "linux":
        raise NetLabError(f"netlab needs network namespaces, which only Linux has; {_REMEDY}")
    if os.geteuid() != 0:
        raise NetLabError(f"netlab needs root, to make network namespaces (try sudo); {_REMEDY}")
    find_tool("ip")
    find_tool("tc")


def ip(*arguments: str) -> str:
    """``run_tool("ip", …)``."""
    return run_tool("ip", *arguments)


def run_batch(tool: str, namespace: str, lines: Sequence[str]) -> None:
    """Run ``ip`` or ``tc`` once for several lines of commands in a namespace; raises as ``run_tool``."""
    run_tool(tool, "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def run_tool(tool: str, *arguments: str, text: str = "") -> str:
    """Run ``ip`` or ``tc``, with ``text`` as its input; returns its output.

    Raises:
        NetLabError: with the tool's own words.
    """
    # In a session of its own, so that Ctrl-C does not reach it: set-up and teardown run to their end.
    command = [find_tool(tool), *arguments]
    try:
        result = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            start_new_session=True,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise NetLabError(f"{' '.join(command)} did not end within {_TOOL_SECONDS:g} s") from error
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().partition("\n")[0]  # below it tc explains all of its options
        raise NetLabError(f"{' '.join(command)}: {words}; {_REMEDY}") from error
    return result.stdout


def find_tool(name: str) -> str:
    """The path of ``ip`` or ``tc``; raises NetLabError, with what to use instead, where it is missing."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")  # not every PATH has them
    if path is None:
        raise NetLabError(f"netlab needs the command {name!r} (package iproute2); {_REMEDY}")
    return path
