"""DQN and PPO find the right width where it is known: few bits on a slow link, many on a fast one."""

from collections import Counter
from pathlib import Path

import pytest
from stable_baselines3.common.base_class import BaseAlgorithm
from toy_link import FAST, SLOW, toy_env

from mqgrad.agents.build import algorithm_class
from mqgrad.agents.checkpoint import load_model
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.evaluate import evaluate
from mqgrad.agents.train import train
from mqgrad.controllers import FixedBits
from mqgrad.envs import BitWidthEnv
from mqgrad.trainers import Distributed, ModelClock

BUDGET_SECONDS = {SLOW: 150.0, FAST: 60.0}


def learn(folder: Path, algo: str, mbit_per_s: float, steps: int) -> tuple[BaseAlgorithm, BitWidthEnv]:
    env = toy_env(mbit_per_s, BUDGET_SECONDS[mbit_per_s])
    config = TrainConfig(
        output=folder, algo=algo, total_steps=steps, seed=1, warm_start="none", progress_bar=False
    )
    model = load_model(train(config, make_env=lambda: env), algorithm_class(algo))
    return model, env


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.parametrize("mbit_per_s", [SLOW, FAST])
def test_agent_reaches_what_the_best_width_reaches(tmp_path: Path, algo: str, mbit_per_s: float) -> None:
    model, env = learn(tmp_path, algo, mbit_per_s, steps=500)
    best, wrong = (3, 16) if mbit_per_s == SLOW else (8, 1)
    contenders = {"learned": model, "best": FixedBits(best), "wrong": FixedBits(wrong)}
    results = evaluate(env, contenders, seeds=[100, 101])
    total = Counter(dict.fromkeys(contenders, 0.0))
    for result in results:
        total[result.controller] += result.episode_return
    assert total["learned"] > 0.8 * total["best"] > total["wrong"]


def test_agent_learns_on_real_processes(tmp_path: Path) -> None:
    """Two real ranks train a real model; a modelled clock makes few bits right on any machine."""
    clock = ModelClock(compute_seconds=0.01, mbit_per_s=1.0)
    cluster = Distributed("digits-mlp", num_workers=2, clock=clock)
    try:
        env = BitWidthEnv(cluster=cluster, budget_seconds=30.0, interval=2)
        config = TrainConfig(output=tmp_path, algo="ppo", total_steps=128, progress_bar=False)  # starts warm
        model = load_model(train(config, make_env=lambda: env), algorithm_class("ppo"))
        results = evaluate(env, {"learned": model, "wrong": FixedBits(32)}, seeds=[7])
    finally:
        cluster.close()
    learned, wrong = results
    assert learned.mean_bits <= 8
    assert learned.final_loss < wrong.final_loss
