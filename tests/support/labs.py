"""What tests on shaped hosts share."""

import sys

import pytest

from mqgrad.experiments.netlab.iproute import NetLabError
from mqgrad.experiments.netlab.lab import NetLab
from mqgrad.experiments.netlab.link import LinkShape


def why_no_lab() -> str:
    """Why there can be no lab here; empty if there can."""
    try:
        with NetLab(2, LinkShape(rate_mbit_per_s=10)):
            return ""
    except NetLabError as error:
        return str(error)


needs_lab = pytest.mark.skipif(bool(reason := why_no_lab()), reason=f"no shaped network here: {reason}")


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs Python code."""
    return [sys.executable, "-c", code, *map(str, arguments)]
