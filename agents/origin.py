"""What a run was made by: kept in its folder, as who exports its policy may have gone on to other versions."""

import datetime
import json
import os
import warnings
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from mqgrad.envs import BitWidthSettings
from mqgrad.files import replace_file
from mqgrad.trainers.versions import git_revision, package_versions
from mqgrad.trainers.workloads.workload import module_digests

from .config import TrainConfig, plain

_FILE = "origin.json"
_MODULES = "workload_modules"
_PACKAGES = ("mqgrad", "stable-baselines3", "gymnasium", "torch", "numpy")


def origin() -> dict[str, Any]:
    """Versions of what matters here and now, and the revision of the source if there is one."""
    return {"versions": package_versions(_PACKAGES), "git_revision": git_revision()}


def save_origin(run: Path, workload: str) -> None:
    """Write it as ``run/origin.json``, and what the workload's module was; of a run that is resumed, the last one
    counts."""
    facts = origin() | {_MODULES: _module_digests(workload)}
    replace_file(run / _FILE, json.dumps(facts, indent=2) + "\n")


def warn_if_changed(run: Path, workload: str) -> None:
    """Warn of a run that goes on with a workload whose module has been edited since: its settings are compared, and
    what it does with them cannot be."""
    before = (_saved(run) or {}).get(_MODULES, {})
    now = _module_digests(workload)
    if changed := [name for name in before if now.get(name, before[name]) != before[name]]:
        warnings.warn(
            f"module {', '.join(changed)} has changed since {run} was trained: if it now trains otherwise, the agent "
            "goes on in another environment than it has learned in, and a run in another folder is safer",
            RuntimeWarning,
            stacklevel=4,  # whoever has called train
        )


def _module_digests(workload: str) -> dict[str, str]:
    try:
        return module_digests([workload])
    except ImportError:  # the name of a cluster's own may mean nothing here
        return {}


def load_origin(run: Path) -> dict[str, Any] | None:
    """Read what :func:`save_origin` wrote of versions and revision; None if there is nothing.

    Raises:
        ValueError: the file is damaged.
    """
    saved = _saved(run)
    if saved is None:
        return None
    try:
        return {name: saved[name] for name in origin()}
    except KeyError as error:
        raise ValueError(f"{run / _FILE} does not hold what a run was made by ({error})") from error


def _saved(run: Path) -> dict[str, Any] | None:
    path = run / _FILE
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold what a run was made by ({error})") from error


_ENVIRONMENT = (
    "workload",
    "num_workers",
    "simulated",
    "clock",
    "link_mbit_per_s",
    "link_latency_ms",
    "compressor",
    "period",
    "reward",
    "smoothing_seconds",
    "discount_per_second",
)


def provenance(
    model: BaseAlgorithm, config: TrainConfig | None, settings: BitWidthSettings
) -> dict[str, Any]:
    """Where a policy comes from, as plain JSON: algorithm, steps, seed, settings, date."""
    facts = {
        "algorithm": type(model).__name__,
        "steps": model.num_timesteps,
        "seed": model.seed,
        "config": _without_paths(config) if config else None,
        "environment": {name: plain(getattr(settings, name)) for name in _ENVIRONMENT},
        "exported": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    return json.loads(json.dumps(facts, default=str))


def _without_paths(config: TrainConfig) -> dict[str, Any]:
    """A policy file travels; where its run and its data lay on this machine does not concern anyone."""
    settings = {
        k: v for k, v in config.to_dict().items() if k not in ("output", "tensorboard", "progress_bar")
    }
    if workload := settings["env"].get("workload_settings"):
        kept = {k: v for k, v in workload.items() if k not in ("data_root", "data_path")}
        settings["env"] = {**settings["env"], "workload_settings": kept}
    return _without_absolute(settings)


def _without_absolute(value: Any) -> Any:
    """A value of JSON without absolute paths, whatever they are called: a workload has settings of its own."""
    if isinstance(value, dict):
        return {name: _without_absolute(part) for name, part in value.items() if not _is_absolute(part)}
    if isinstance(value, list):
        return [_without_absolute(part) for part in value if not _is_absolute(part)]
    return value


def _is_absolute(value: Any) -> bool:
    return isinstance(value, str) and os.path.isabs(os.path.expanduser(value))
