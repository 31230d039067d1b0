"""Which source is running, and with which packages: kept beside every figure and in every exported policy."""

import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import mqgrad


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each package; None where it is not installed."""
    return {name: _version(name) for name in packages}


def git_revision() -> str | None:
    """Commit of the source that is running, with ``+changes`` if files differ from it; None outside a checkout."""
    folder = Path(mqgrad.__file__).resolve().parent
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    # An installed copy may lie inside a stranger's checkout (a virtual environment in a project's folder).
    if not commit or not _git(folder, "ls-files", "--", "__init__.py"):
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changed else commit


def _version(package: str) -> str | None:
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
