"""Where figures come from: versions, machine, and revision of the source."""

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import mqgrad
from mqgrad import cuda_ext

_PACKAGES = ("mqgrad", "torch", "numpy", "scikit-learn")


def provenance() -> dict[str, Any]:
    """Versions, machine and git revision, as plain types. Holds no name of a host, a user or a folder."""
    return {
        "revision": git_revision(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            "codec": cuda_ext.IMPLEMENTATION,
        },
        "machine": {
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "kernel": f"{platform.system()} {platform.release()}",
        },
    }


def git_revision() -> str | None:
    """Commit of the source that is running, with ``+changes`` if files differ from it; None outside a checkout."""
    folder = Path(mqgrad.__file__).resolve().parent
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    # An installed copy may lie inside a stranger's checkout (a virtual environment in a project's folder).
    if not commit or not _git(folder, "ls-files", "--", "__init__.py"):
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changed else commit


def cpu_model() -> str:
    """The processor's name as the kernel tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def file_digest(path: Path) -> str:
    """The first 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


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
