"""Checkpoints of a training: model, replay buffer, random states and progress, each in one folder."""

import contextlib
import json
import os
import random
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import unwrap_wrapper
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from mqgrad.envs import BitWidthSettings
from mqgrad.envs.recovering_cluster import with_all_settings
from mqgrad.files import replace_file, replacing
from mqgrad.saved_state import check_keys, check_version, restored_settings

from .config import plain, with_clock
from .time_price import TimePrice

KEEP = 2
FORMAT_VERSION = 2
"""Of a checkpoint: to be raised whenever what it holds, or what that means, changes."""


class Restored(NamedTuple):
    """A model that continues where its checkpoint stopped."""

    model: BaseAlgorithm
    seconds: float
    """Wall-clock seconds of training up to the checkpoint."""


def latest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    return max(_complete(run / "checkpoints"), default=None, key=lambda path: path.name)


def _complete(checkpoints: Path) -> list[Path]:
    """Those that :func:`save_checkpoint` has named, and no copies beside them, or what a user has set aside."""
    return [path for path in checkpoints.glob("step_*") if re.fullmatch(r"step_\d{8}", path.name)]


def newest_model(run: Path) -> Path:
    """The model of a run folder that has learned longest: ``model.zip``, or that of a checkpoint which came after it,
    because the run was resumed and then ended by an error or at once by a signal.

    Raises:
        FileNotFoundError: it holds neither.
        ValueError: one of them is damaged.
    """
    checkpoint = latest_checkpoint(run)
    models = [run / "model.zip", *([checkpoint / "model.zip"] if checkpoint else [])]
    there = [path for path in models if path.exists()]
    if not there:
        raise FileNotFoundError(f"there is no model in {run}: neither model.zip nor a checkpoint")
    return max(there, key=_steps_of)  # model.zip, if they are equal


def _steps_of(model: Path) -> int:
    try:
        with zipfile.ZipFile(model) as parts:
            steps: int = json.loads(parts.read("data"))["num_timesteps"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{model} is no model of Stable-Baselines3 ({error}); to export another of the folder, name its model.zip"
        ) from error
    return steps


def save_checkpoint(run: Path, model: BaseAlgorithm, seconds: float) -> Path:
    """Write ``run/checkpoints/step_N`` and drop all but the last two.

    A folder has its name only while it is complete, so that a crash leaves no half checkpoint.
    """
    final = run / "checkpoints" / f"step_{model.num_timesteps:08d}"
    partial = final.with_name(f"partial_{model.num_timesteps:08d}")
    _remove_partial(final.parent)  # left by a process that was killed
    partial.mkdir(parents=True)
    model.save(partial / "model.zip")
    if isinstance(model, OffPolicyAlgorithm):
        model.save_replay_buffer(partial / "replay_buffer.pkl")
    torch.save(_random_states(model), partial / "random_states.pt")
    progress = {
        "format_version": FORMAT_VERSION,
        "steps": model.num_timesteps,
        "seconds": seconds,
        "time_price": _time_price(model),
    }
    (partial / "progress.json").write_text(json.dumps(progress))
    if final.exists():  # a run that ends where it has just saved saves once more
        _set_aside(final)
    os.replace(partial, final)
    for old in sorted(_complete(final.parent))[:-KEEP]:
        _set_aside(old)
    _remove_partial(final.parent)
    return final


def _set_aside(checkpoint: Path) -> None:
    os.replace(checkpoint, checkpoint.with_name(f"partial_old_{checkpoint.name}"))


def _remove_partial(checkpoints: Path) -> None:
    for folder in checkpoints.glob("partial_*"):
        shutil.rmtree(folder)


def save_model(run: Path, model: BaseAlgorithm) -> Path:
    """Write ``run/model.zip``, complete or not at all."""
    final = run / "model.zip"
    with replacing(final, run / "partial_model.zip") as partial:
        model.save(partial)
    return final


def save_settings(run: Path, settings: BitWidthSettings) -> None:
    """Write the environment's settings as ``run/environment.json``, the workload's defaults included, which may be
    others by the time that the run is resumed: an exported policy needs them."""
    try:
        text = _as_json(with_all_settings(settings))
    except TypeError:  # a default that nobody gave, and that JSON cannot hold
        text = _as_json(settings)
    replace_file(run / "environment.json", text + "\n")


def _as_json(settings: BitWidthSettings) -> str:
    return json.dumps(plain(settings), default=_described, indent=2)


def _described(value: object) -> str:
    """What JSON cannot hold, such as an activation function, without its address, by which runs would differ."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def load_settings(run: Path) -> BitWidthSettings | None:
    """Read what :func:`save_settings` wrote; None if there is nothing.

    Raises:
        ValueError: the file is damaged, or has settings that this version lacks.
    """
    path = run / "environment.json"
    if not path.exists():
        return None
    try:
        saved = with_clock(json.loads(path.read_text()))
        if "interval" in saved:  # before `opening` was a setting, runs opened with a whole interval
            saved.setdefault("opening", saved["interval"])
        return restored_settings(BitWidthSettings, saved)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} holds no settings of an environment ({error})") from error


def check_settings(run: Path, settings: BitWidthSettings) -> None:
    """Raise ``ValueError``, naming what differs, unless a run goes on in the environment that it began in.

    Only how long a silent worker is waited for may differ.
    """
    saved = load_settings(run)
    if saved is None:
        return
    complete = with_all_settings(settings)
    had, has = (json.loads(_as_json(each)) for each in (with_all_settings(saved), complete))
    if complete is not settings:  # those that the workload had not, or an older version did not save
        had["workload_settings"] = has["workload_settings"] | (had["workload_settings"] or {})
    differing = [name for name in has if has[name] != had[name] and name != "timeout_seconds"]
    if differing:
        before, now = (", ".join(f"{name}={of[name]!r}" for name in differing) for of in (had, has))
        raise ValueError(
            f"{run} holds a run in an environment with {before} and cannot go on in one with {now}: choose another "
            "folder, or the environment that it began in"
        )


def load_model(path: Path, algorithm: type[BaseAlgorithm], env: VecEnv | None = None) -> BaseAlgorithm:
    """Load a model that :func:`~mqgrad.agents.train.train` saved. It runs code from the file: open only your own."""
    # SB3 saves the class of an n-step buffer that it chose itself, and then warns as if the user had given one.
    return algorithm.load(path, env=env, device="cpu", custom_objects={"replay_buffer_class": None})


def load_checkpoint(path: Path, algorithm: type[BaseAlgorithm], env: VecEnv) -> Restored:
    """Rebuild the model of ``path`` around ``env``, with everything that decides how it goes on.

    Raises:
        ValueError: the checkpoint is damaged or incomplete, or of another format.
    """
    with _damage_named(path):
        progress = json.loads((path / "progress.json").read_text())
        version = progress.get("format_version")
    check_version(version, FORMAT_VERSION, f"the training in {path}")
    with _damage_named(path):
        return _load_checkpoint(path, progress, algorithm, env)


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pickle, zip, json and torch each have their own for half a file
        raise ValueError(
            f"checkpoint {path} cannot be read ({type(error).__name__}: {error}). If it is damaged, move that "
            "folder away to resume from the checkpoint before it; if another version of mqgrad saved it, start anew "
            "in another output folder"
        ) from error


def _load_checkpoint(
    path: Path, progress: dict[str, Any], algorithm: type[BaseAlgorithm], env: VecEnv
) -> Restored:
    check_keys(progress, ["format_version", "steps", "seconds", "time_price"], "the training")
    model = load_model(path / "model.zip", algorithm, env)
    if isinstance(model, OffPolicyAlgorithm):
        model.load_replay_buffer(path / "replay_buffer.pkl")
        _close_last_episode(model.replay_buffer)
    _restore_random_states(model, torch.load(path / "random_states.pt", weights_only=True))
    _restore_time_price(model, progress["time_price"])
    return Restored(model, progress["seconds"])


def _close_last_episode(buffer: ReplayBuffer | None) -> None:
    # The episode that the checkpoint cut off is not continued: n-step returns must not run into the next one.
    assert buffer is not None
    if buffer.size():
        buffer.timeouts[buffer.pos - 1] = 1.0 - buffer.dones[buffer.pos - 1]


def _random_states(model: BaseAlgorithm) -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(np.array(keys, dtype=np.int64)), *rest],
        "python": random.getstate(),
        "actions": model.action_space.np_random.bit_generator.state,
        "episodes": _environment(model).np_random.bit_generator.state,
    }


def _restore_random_states(model: BaseAlgorithm, states: dict[str, Any]) -> None:
    name, keys, *rest = states["numpy"]
    torch.set_rng_state(states["torch"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    model.action_space.np_random.bit_generator.state = states["actions"]
    _environment(model).np_random.bit_generator.state = states["episodes"]
    assert isinstance(model.env, DummyVecEnv)
    model.env._reset_seeds()  # loading has asked for the first run's seeds, and so for its episodes once more


def _environment(model: BaseAlgorithm) -> gymnasium.Env:
    assert isinstance(model.env, DummyVecEnv)
    return model.env.envs[0].unwrapped


def find_time_price(model: BaseAlgorithm) -> TimePrice | None:
    """The shaping around the model's environment, if any."""
    assert isinstance(model.env, DummyVecEnv)
    found = unwrap_wrapper(model.env.envs[0], TimePrice)
    assert found is None or isinstance(found, TimePrice)
    return found


def _time_price(model: BaseAlgorithm) -> dict[str, Any] | None:
    wrapper = find_time_price(model)
    return wrapper.state_dict() if wrapper else None


def _restore_time_price(model: BaseAlgorithm, state: dict[str, Any] | None) -> None:
    wrapper = find_time_price(model)
    if wrapper and state:
        wrapper.load_state_dict(state)
