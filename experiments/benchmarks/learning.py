"""Can an agent improve on the goodput rule that it starts from? Simulated: the toy link, where the answer is known.

    python experiments/benchmarks/learning.py                       # the presets
    python experiments/benchmarks/learning.py '{"algo": "dqn", "hyperparameters": {"gamma": 0.5}}' ...

Every agent gets the same training, 5000 iterations, cut into decisions of 5 or 20 iterations. A figure is the drop in
log-loss within the budget, loss noise taken off, beside the one that the rule reaches (+10 % is better than the
rule): mean and worst over seeds, of the network as it starts and as it ends.
"""

import concurrent.futures
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import script
import torch
from toy_link import ToyLink

from mqgrad.agents.build import build_env, build_model
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.train import repricing
from mqgrad.agents.warm_start import rule_action
from mqgrad.envs import BitWidthEnv

SEEDS = range(5)
EPISODES = range(500, 506)
ITERATIONS = 5000
INTERVALS = (5, 20)


class Case(NamedTuple):
    """A link and how far the rule's formula is from the truth there."""

    mbit_per_s: float | tuple[float, float]
    """Or the range that every episode draws its link from."""
    budget_seconds: float
    feedback: float
    """Quantization hurts so many times less than the rule believes."""
    rate: float
    loss_noise: float
    """Of the mean loss of 5 iterations, relative."""
    noise_growth: float
    """Log-noise gained per log-loss lost; digits-cnn was measured to have about 0.85."""


CASES = {
    "rule right": Case(10.0, 150.0, 1.0, 0.02, 0.02, 0.0),
    "rule right, noisy loss": Case(10.0, 150.0, 1.0, 0.05, 0.05, 0.85),
    "fewer bits are better": Case(10.0, 150.0, 8.0, 0.02, 0.02, 0.0),
    "fewer bits are better, noisy loss": Case(10.0, 150.0, 8.0, 0.05, 0.05, 0.85),
    "more bits are better, noisy loss": Case(50.0, 100.0, 1 / 32, 0.1, 0.05, 0.85),
    "any link, rule right": Case((1.0, 1000.0), 150.0, 1.0, 0.05, 0.05, 0.85),
    "any link, fewer bits are better": Case((1.0, 1000.0), 150.0, 8.0, 0.05, 0.05, 0.85),
    "any link, more bits are better": Case((1.0, 1000.0), 150.0, 1 / 8, 0.05, 0.05, 0.85),
}


class NoisyToy(ToyLink):
    """Loss noise that grows as the loss falls, and shrinks with the iterations that a mean is over."""

    def __init__(self, case: Case) -> None:
        self.case = case
        super().__init__(1.0, rate=case.rate, feedback=case.feedback)

    def run(self, iterations: int, bits: int | None = None) -> Any:
        grown = self.case.loss_noise * np.exp(self.case.noise_growth * (np.log(2.3) - self.log_loss))
        self.loss_noise = min(grown, 0.5) * (5 / iterations) ** 0.5
        return super().run(iterations, bits)


def environment(case: Case, interval: int) -> BitWidthEnv:
    cluster: Any = NoisyToy(case)
    return BitWidthEnv(
        cluster=cluster,
        budget_seconds=case.budget_seconds,
        interval=interval,
        link_mbit_per_s=case.mbit_per_s,
    )


def achieved(case: Case, interval: int, choose: Callable[[Any], Any]) -> float:
    """Mean drop of the noiseless log-loss within the budget."""
    env, drops = environment(case, interval), []
    for seed in EPISODES:
        observation, info = env.reset(seed=seed)
        cluster: Any = env._cluster.cluster
        times, levels, done = [info["elapsed_seconds"]], [cluster.log_loss], False
        while not done:
            observation, _, terminated, truncated, info = env.step(np.int64(choose(observation)))
            done = terminated or truncated
            times.append(info["elapsed_seconds"])
            levels.append(cluster.log_loss)
        drops.append(np.log(2.3) - np.interp(case.budget_seconds, times, levels))
    return float(np.mean(drops))


def references(name: str, interval: int) -> tuple[float, float]:
    """What the rule achieves, and the best fixed width."""
    case = CASES[name]
    schema = environment(case, interval).settings.schema
    fixed = [achieved(case, interval, partial(_always, i)) for i in range(len(schema.widths))]
    return achieved(case, interval, lambda observation: rule_action(observation, schema)), max(fixed)


def _always(action: int, observation: Any) -> int:
    return action


def learned(variant: dict[str, Any], name: str, interval: int, seed: int) -> tuple[float, float]:
    """What the network achieves before and after it learned."""
    torch.set_num_threads(1)
    case = CASES[name]
    config = TrainConfig(
        output=Path("unused"), total_steps=ITERATIONS // interval, **{"seed": seed, **variant}
    )
    model = build_model(config, build_env(config, lambda: environment(case, interval)))

    def greedy(observation: Any) -> Any:
        return model.predict(observation, deterministic=True)[0]

    before = achieved(case, interval, greedy)
    model.learn(config.total_steps or 0, callback=[*repricing(model)])
    return before, achieved(case, interval, greedy)


def main(variants: list[dict[str, Any]]) -> None:
    cells = [(name, interval) for interval in INTERVALS for name in CASES]
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        known = dict(zip(cells, pool.map(references, *zip(*cells, strict=True)), strict=True))
        for variant in variants:
            print(json.dumps(variant))
            for name, interval in cells:
                rule, best = known[name, interval]
                jobs = [(variant, name, interval, seed) for seed in SEEDS]
                rows = pool.map(learned, *zip(*jobs, strict=True))
                before, after = ([value / rule - 1 for value in column] for column in zip(*rows, strict=True))
                print(
                    f"  {ITERATIONS // interval:4d} decisions of {interval:2d}, {name:34s}"
                    f" best width {best / rule - 1:+7.1%}, start {statistics.mean(before):+7.1%},"
                    f" learned {statistics.mean(after):+7.1%} (worst {min(after):+7.1%})",
                    flush=True,
                )


if __name__ == "__main__":
    parser = script.parser(__doc__)
    parser.add_argument("variants", nargs="*", type=json.loads, help="of TrainConfig, as JSON")
    main(parser.parse_args().variants or [{"algo": "ppo"}, {"algo": "dqn"}])
