"""Run policies and fixed widths through the same episodes, and compare."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from stable_baselines3.common.base_class import BaseAlgorithm

from mqgrad.controllers.fixed import FixedBits
from mqgrad.envs import BitWidthSettings
from mqgrad.policy import FrozenPolicy
from mqgrad.widths import Width, format_width

Observation = npt.NDArray[np.float32]
Contender = FrozenPolicy | BaseAlgorithm | FixedBits


class Chooser(Protocol):
    """Index of the action for an observation, at the current width."""

    def __call__(self, observation: Observation, bits: Width) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeResult:
    """What one contender reached in one episode."""

    controller: str
    seed: int
    episode_return: float
    """Sum of the environment's rewards."""
    final_loss: float
    """Training loss, mean of the last interval."""
    decisions: int
    iterations: int
    """Training iterations, the opening interval included."""
    seconds: float
    """Seconds of training, measured or modelled as the environment does."""
    mean_bits: float
    """Mean width of the decided intervals."""
    wire_mib: float
    """MiB that one rank sent."""
    link_mbit_per_s: float | None
    diverged: bool


def evaluate(
    env: gymnasium.Env, contenders: Mapping[str, Contender], seeds: Iterable[int]
) -> list[EpisodeResult]:
    """One episode per contender and seed; the same seed gives the same model, data order and link.

    Args:
        env: an ``mqgrad/BitWidth-v0``, unwrapped or not; it stays open.
        contenders: by name: frozen policies, SB3 models, or fixed widths (these need absolute actions).

    Raises:
        ValueError: a contender that does not fit the environment.
    """
    settings = env.get_wrapper_attr("settings")
    choosers = {name: chooser(contender, settings) for name, contender in contenders.items()}
    return [
        _episode(env, name, choose, seed, settings) for seed in seeds for name, choose in choosers.items()
    ]


def summarize(results: Sequence[EpisodeResult]) -> list[dict[str, float | str]]:
    """Means over seeds per controller, best return first."""
    rows: list[dict[str, float | str]] = []
    for name in dict.fromkeys(result.controller for result in results):
        mine = [result for result in results if result.controller == name]
        fields = ("episode_return", "final_loss", "iterations", "mean_bits", "wire_mib")
        means = {field: float(np.mean([getattr(r, field) for r in mine])) for field in fields}
        rows.append({"controller": name, **means})
    return sorted(rows, key=lambda row: -float(row["episode_return"]))


def chooser(contender: Contender, settings: BitWidthSettings) -> Chooser:
    """How ``contender`` picks actions of an environment with ``settings``.

    Raises:
        ValueError: if it sees other observations or widths than the environment has.
    """
    if isinstance(contender, FixedBits):
        if settings.action != "absolute" or contender.bits not in settings.widths:
            raise ValueError(
                f"fixed {format_width(contender.bits)} bits is not an action of {settings.action} {settings.widths}"
            )
        index = settings.widths.index(contender.bits)
        return lambda observation, bits: index
    if isinstance(contender, FrozenPolicy):
        if contender.schema != settings.schema:
            raise ValueError(f"the policy observes {contender.schema}, the environment {settings.schema}")
        frozen = contender
        return lambda observation, bits: frozen.act(observation, bits)
    return _model_chooser(contender, settings)


def _model_chooser(model: BaseAlgorithm, settings: BitWidthSettings) -> Chooser:
    size = model.observation_space.shape[0]  # type: ignore[index]
    if size not in (settings.schema.size, settings.schema.size + 1):
        raise ValueError(f"the model observes {size} numbers, the environment shows {settings.schema.size}")
    normalize = model.get_vec_normalize_env()

    def choose(observation: Observation, bits: Width) -> int:
        if size == settings.schema.size + 1:  # SARSA sees the width as well
            observation = np.append(observation, settings.widths.index(bits)).astype(np.float32)
        seen = normalize.normalize_obs(observation) if normalize else observation
        return int(model.predict(seen, deterministic=True)[0])

    return choose


def _episode(
    env: gymnasium.Env, name: str, choose: Chooser, seed: int, settings: BitWidthSettings
) -> EpisodeResult:
    observation, info = env.reset(seed=seed)
    wire_bytes, total, widths = info["wire_bytes"] * settings.opening, 0.0, []
    terminated = truncated = False
    while not (terminated or truncated):
        action = np.int64(choose(observation, info["bits"]))
        observation, reward, terminated, truncated, info = env.step(action)
        total += float(reward)
        widths.append(info["bits"])
        wire_bytes += info["wire_bytes"] * settings.interval
    return EpisodeResult(
        controller=name,
        seed=seed,
        episode_return=total,
        final_loss=info["loss"],
        decisions=len(widths),
        iterations=info["iteration"],
        seconds=info["elapsed_seconds"],
        mean_bits=float(np.mean(widths)) if widths else math.nan,
        wire_mib=wire_bytes / 2**20,
        link_mbit_per_s=info["link_mbit_per_s"],
        diverged=terminated,
    )
