"""DQN and PPO find the right width where it is known: few bits on a slow link, many on a fast one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from stable_baselines3.common.base_class import BaseAlgorithm
from toy_env import FAST, SLOW, right_widths
from toy_link import ToyLink

from mqgrad.agents.build import algorithm_class, build_env, build_model
from mqgrad.agents.checkpoint import load_model
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.train import train
from mqgrad.envs import BitWidthEnv
from mqgrad.trainers import Distributed, ModelClock

EPISODES = (100, 101, 102)
SEEDS = {"dqn": 5, "ppo": 12}  # of networks that choose wrongly on both links before they learn


class Link(NamedTuple):
    """A link on which most widths are clearly wrong."""

    mbit_per_s: float
    budget_seconds: float
    peak_energy: float

    def make_env(self) -> BitWidthEnv:
        cluster = ToyLink(self.mbit_per_s, peak_energy=self.peak_energy)
        return BitWidthEnv(cluster=cluster, budget_seconds=self.budget_seconds, interval=10)


LINKS = {"slow": Link(SLOW, 150.0, 6.0), "fast": Link(FAST, 60.0, 600.0)}


def play(env: BitWidthEnv, choose: Any) -> tuple[float, list[int]]:
    """Mean return, and all widths chosen, of the same few episodes."""
    total, widths = 0.0, []
    for seed in EPISODES:
        observation, _ = env.reset(seed=seed)
        done = False
        while not done:
            observation, reward, terminated, truncated, info = env.step(np.int64(choose(observation)))
            total, done = total + reward, terminated or truncated
            widths.append(info["bits"])
    return total / len(EPISODES), widths


def greedy(model: BaseAlgorithm) -> Any:
    return lambda observation: model.predict(observation, deterministic=True)[0]


def at_random(env: BitWidthEnv) -> Any:
    rng = np.random.default_rng(0)
    return lambda observation: rng.integers(env.action_space.n)


def share(widths: list[int], right: set[int]) -> float:
    return float(np.mean([bits in right for bits in widths]))


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.parametrize("link", ["slow", "fast"])
def test_an_agent_that_starts_from_nothing_learns_the_right_widths(
    tmp_path: Path, algo: str, link: str
) -> None:
    make_env = LINKS[link].make_env
    config = TrainConfig(
        output=tmp_path, algo=algo, total_steps=500, seed=SEEDS[algo], warm_start="none", progress_bar=False
    )
    model = load_model(train(config, make_env=make_env), algorithm_class(algo))
    untrained = build_model(config, build_env(config, make_env))
    env = make_env()
    right = right_widths(env.settings.widths, LINKS[link].mbit_per_s, LINKS[link].peak_energy)
    assert right == ({2, 3, 4} if link == "slow" else {6, 8, 16, 32})
    best = max(play(env, lambda _, i=i: i)[0] for i in range(len(env.settings.widths)))

    learned, widths = play(env, greedy(model))
    start, start_widths = play(env, greedy(untrained))
    chance, chance_widths = play(env, at_random(env))
    assert learned > 0.85 * best
    assert chance < 0.7 * best
    assert start < 0.82 * best
    assert share(widths, right) >= 0.8
    assert max(share(start_widths, right), share(chance_widths, right)) < 0.8


CLOCK = ModelClock(compute_seconds=0.01, mbit_per_s=1.0)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Distributed]:
    """Two real ranks that train a real model; a modelled clock makes few bits right on any machine."""
    with Distributed("digits-mlp", num_workers=2, clock=CLOCK) as cluster:
        yield cluster


def test_an_agent_that_starts_from_nothing_learns_on_real_processes(
    ranks: Distributed, tmp_path: Path
) -> None:
    env = BitWidthEnv(cluster=ranks, budget_seconds=30.0, interval=2)
    config = TrainConfig(
        output=tmp_path, algo="ppo", total_steps=384, seed=2, warm_start="none", progress_bar=False
    )
    model = load_model(train(config, make_env=lambda: env), algorithm_class("ppo"))
    learned, widths = play(env, greedy(model))
    chance, _ = play(env, at_random(env))
    assert learned > 1.15 * chance
    assert share(widths, {1, 2, 3, 4}) >= 0.8
