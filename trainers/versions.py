"""Which source is running, and with which packages: kept beside every figure and in every exported policy.

Imports nothing of the package: ``setup.py`` runs this file before there is one.
"""

import hashlib
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import torch

_SUFFIXES = (".py", ".cpp", ".h", ".cu", ".mqg")
"""Of files that are installed: a report that was made in a checkout is no change of it."""


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each package, of torch with its build (``+cpu``); None where it is not installed."""
    return {name: _version(name) for name in packages}


def git_revision() -> str | None:
    """Commit of the source that is running: a checkout's own, or the one that an installed copy was built from; None
    where neither is known.

    With ``+changes.`` and a digest of them where sources differed from it, and ``+checkout`` where an installed copy
    runs together with the ``mqgrad`` folder of a checkout, as ``python -m mqgrad`` does there.
    """
    here = Path(__file__).resolve()
    return checkout_revision(here, here.parents[1]) or _built_from(here.parents[1])


def checkout_revision(file: Path, root: Path) -> str | None:
    """Commit of the checkout that a file belongs to, with changes below ``root`` as :func:`git_revision` tells them;
    None for a file that is not in git."""
    commit = _git(file.parent, "rev-parse", "--short=12", "HEAD")
    # An installed copy may lie inside a stranger's checkout (a virtual environment in a project's folder).
    if not commit or not _git(file.parent, "ls-files", "--", file.name):
        return None
    changes = _changes(root)
    return f"{commit}+changes.{changes}" if changes else commit


def _built_from(package: Path) -> str | None:
    """What ``setup.py`` wrote into the package."""
    noted, running = package / "revision.txt", getattr(sys.modules.get("mqgrad"), "__file__", None)
    if not noted.is_file():
        return None
    is_alone = running is None or Path(running).resolve().parent == package
    return noted.read_text().strip() + ("" if is_alone else "+checkout")


def _changes(root: Path) -> str:
    """Eight digits that stand for how sources differ from the last commit, new files included; empty if they do not,
    ``unknown`` if git does not tell."""
    packages = [path.parent.name for path in sorted(root.glob("*/__init__.py"))]
    sources = [
        "setup.py",
        "pyproject.toml",
        *(f"{name}/*{suffix}" for name in packages for suffix in _SUFFIXES),
    ]
    changed = _git(
        root, "diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD", "--", *sources
    )
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *sources)
    if changed is None or new is None:
        return "unknown"
    digest = hashlib.sha256(changed.encode(errors="surrogateescape"))
    for name in filter(None, new.split("\0")):
        digest.update(f"{name}\0".encode(errors="surrogateescape") + _content(root / name))
    return digest.hexdigest()[:8] if changed or new else ""


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone by now, or a link to nothing, as by which an editor marks what is open
        return b""


def _version(package: str) -> str | None:
    if package == "torch":
        return str(torch.__version__)  # what wheels say of themselves may leave the build out
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    """What git answers, whatever bytes that are; None where it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.decode(errors="surrogateescape").strip()
