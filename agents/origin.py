"""What a run was made by: kept in its folder, as who exports its policy may have gone on to other versions."""

import json
from pathlib import Path
from typing import Any

from mqgrad.files import replace_file
from mqgrad.trainers.versions import git_revision, package_versions

_PACKAGES = ("mqgrad", "stable-baselines3", "gymnasium", "torch", "numpy")


def origin() -> dict[str, Any]:
    """Versions of what matters here and now, and the revision of the source if there is one."""
    return {"versions": package_versions(_PACKAGES), "git_revision": git_revision()}


def save_origin(run: Path) -> None:
    """Write it as ``run/origin.json``; of a run that is resumed, the last one counts."""
    replace_file(run / "origin.json", json.dumps(origin(), indent=2) + "\n")


def load_origin(run: Path) -> dict[str, Any] | None:
    """Read what :func:`save_origin` wrote; None if there is nothing.

    Raises:
        ValueError: the file is damaged.
    """
    path = run / "origin.json"
    if not path.exists():
        return None
    try:
        saved: dict[str, Any] = json.loads(path.read_text())
        return {name: saved[name] for name in origin()}
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{path} does not hold what a run was made by ({error})") from error
