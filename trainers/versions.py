"""Which source is running, and with which packages: kept beside every figure and in every exported policy.

Imports nothing of the package: ``setup.py`` runs this file before there is one.
"""

import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import torch


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each package, of torch with its build (``+cpu``); None where it is not installed."""
    return {name: _version(name) for name in packages}


def git_revision() -> str | None:
    """Commit of the source that is running, with ``+changes`` if files differed from it: a checkout's own, or the one
    that an installed copy was built from; None where neither is known.

    The source is where this file lies: ``python -m`` in a checkout takes it from the installed package.
    """
    here = Path(__file__).resolve()
    commit = _git(here.parent, "rev-parse", "--short=12", "HEAD")
    # An installed copy may lie inside a stranger's checkout (a virtual environment in a project's folder).
    if not commit or not _git(here.parent, "ls-files", "--", here.name):
        return _built_from(here.parents[1] / "revision.txt")
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changed else commit


def _built_from(path: Path) -> str | None:
    """What ``setup.py`` wrote into the package."""
    return path.read_text().strip() if path.is_file() else None


def _version(package: str) -> str | None:
    if package == "torch":
        return str(torch.__version__)  # what wheels say of themselves may leave the build out
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()
