"""Compare settings of the agents on the toy link, where the right width is known: how the presets were chosen.

    python tests/agents/lab.py                          # the presets
    python tests/agents/lab.py '{"algo": "dqn", "hyperparameters": {"gamma": 0.5}}' ...

Per variant and link: mean and worst regret (return missed, as a part of the best fixed width's) and the share of
greedy decisions at a right width, over seeds. As obtained, 600 decisions, 5 seeds, mean regret in %:

| start | algorithm | slow | fast | mix | feedback |
|---|---|---|---|---|---|
| the goodput rule alone, imitated (4 or 5 seeds) | | 0.0 | 0.1 | 0.5 | 6.4 |
| imitating the rule | PPO | 1.2 | 0.6 | 4.0 | 1.4 |
| | DQN | 3.0 | 0.6 | 5.0 | 4.1 |
| random | PPO | 6.3 | 0.8 | 8.4 | 1.3 |
| | DQN | 8.7 | 1.8 | 3.8 | 11.1 |

The first three are the rule's home ground: the toy follows its formula, and learning from noisy rewards can only
lose a little. In ``feedback`` the formula is wrong, and learning makes up for it.
"""

import json
import multiprocessing
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from toy_link import ToyCluster, right_widths

from mqgrad.agents.build import build_env, build_model
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.train import repricing
from mqgrad.envs import BitWidthEnv

LINKS = {  # Mbit/s
    "slow": (10.0,),
    "fast": (10_000.0,),
    "mix": (10.0, 200.0, 10_000.0),
    "feedback": (10.0,),  # quantization hurts 8 times less than the goodput rule believes
}
BUDGET_SECONDS = {"slow": 150.0, "fast": 60.0, "mix": 100.0, "feedback": 150.0}
FEEDBACK = {"feedback": 8.0}
SEEDS = range(5)
STEPS = 600


class Score(NamedTuple):
    regret: float
    share_right: float


class MixedToy(ToyCluster):
    """Every episode on one of several links."""

    def __init__(self, links: tuple[float, ...], feedback: float) -> None:
        self.links = links
        super().__init__(links[0], feedback=feedback)

    def reset(self, seed: int | None = None, **kwargs: Any) -> None:
        super().reset(seed, **kwargs)
        self.link_mbit_per_s = float(self.rng.choice(self.links))


def learn_and_score(variant: dict[str, Any], where: str, seed: int) -> Score:
    """Train one agent, then run it greedily on every link of ``where`` without loss noise."""
    torch.set_num_threads(1)
    budget, feedback = BUDGET_SECONDS[where], FEEDBACK.get(where, 1.0)
    config = TrainConfig(
        output=Path("unused"), **{"total_steps": STEPS, "seed": seed, "warm_start": "none", **variant}
    )
    env = build_env(
        config, lambda: BitWidthEnv(cluster=MixedToy(LINKS[where], feedback), budget_seconds=budget)
    )
    model = build_model(config, env)
    model.learn(config.total_steps or STEPS, callback=repricing(model))
    scores = [greedy(model, mbit_per_s, budget, feedback) for mbit_per_s in LINKS[where]]
    return Score(*(float(np.mean(column)) for column in zip(*scores, strict=True)))


def greedy(model: Any, mbit_per_s: float, budget: float, feedback: float) -> Score:
    env = BitWidthEnv(
        cluster=ToyCluster(mbit_per_s, loss_noise=0.0, feedback=feedback), budget_seconds=budget
    )
    right = right_widths(env.settings.widths, mbit_per_s, feedback)
    reached, widths = rollout(env, lambda observation: model.predict(observation, deterministic=True)[0])
    best = max(rollout(env, lambda _, i=i: i)[0] for i in range(len(env.settings.widths)))
    return Score(1 - reached / best, float(np.mean([bits in right for bits in widths])))


def rollout(env: BitWidthEnv, choose: Any) -> tuple[float, list[int]]:
    observation, _ = env.reset(seed=123)
    total, widths, done = 0.0, [], False
    while not done:
        observation, reward, terminated, truncated, info = env.step(np.int64(choose(observation)))
        total, done = total + reward, terminated or truncated
        widths.append(info["bits"])
    return total, widths


def compare(variants: list[dict[str, Any]]) -> None:
    with multiprocessing.Pool(2) as pool:
        for variant in variants:
            print(json.dumps(variant))
            for where in LINKS:
                scores = pool.starmap(
                    learn_and_score, [(variant, where, seed) for seed in SEEDS], chunksize=1
                )
                regrets = [score.regret for score in scores]
                share = statistics.mean(score.share_right for score in scores)
                print(
                    f"  {where:5s} regret {statistics.mean(regrets):6.1%}, worst {max(regrets):6.1%},"
                    f" right {share:5.0%}",
                    flush=True,
                )


if __name__ == "__main__":
    compare(
        [json.loads(text) for text in sys.argv[1:]]
        or [{"algo": algo, "warm_start": warm} for algo in ("dqn", "ppo") for warm in ("goodput", "none")]
    )
