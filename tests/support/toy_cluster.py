"""A cluster with known dynamics to put behind an environment."""

from typing import Any

import numpy as np
from intervals import statistics

from mqgrad.envs import BitWidthEnv
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.trainers import LinkEmulation, ModelClock

CLOCK = ModelClock(compute_seconds=0.01, mbit_per_s=10.0)


class ToyCluster:
    """Loss falls 1 % an iteration at any width, with noise from the seed; seconds are proportional to bits."""

    world_size = 2
    can_restart = True
    needs_restart = False
    workload: Any = None
    clock: ModelClock | None = None

    def __init__(self) -> None:
        self.resets: list[tuple[int, LinkEmulation | None]] = []
        self.restarts = self.closes = 0
        self.scale, self.bytes_per_bit = 0.99, 1000.0
        self.error: BaseException | None = None

    def reset(self, seed: int, *, link: LinkEmulation | None = None, **_: Any) -> None:
        self.resets.append((seed, link))
        self.rng = np.random.default_rng(seed)
        self.loss, self.iteration = 2.0 + self.rng.random(), 0

    def run(self, iterations: int, bits: int | None = None) -> IntervalStatistics:
        if self.error is not None:
            self.needs_restart = not isinstance(self.error, ValueError)
            raise self.error
        assert bits is not None
        losses = []
        for _ in range(iterations):
            self.loss *= self.scale + 0.001 * self.rng.random()
            losses.append(self.loss)
        self.iteration += iterations
        return statistics(
            iteration=self.iteration,
            bits=bits,
            losses=tuple(losses),
            step_seconds=0.01 + 0.001 * bits,
            compute_seconds=0.01,
            encode_seconds=0.0,
            wire_seconds=0.001 * bits,
            decode_seconds=0.0,
            wire_bytes=self.bytes_per_bit * bits or 500.0,
        )

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.loss}

    def restart(self) -> None:
        self.error, self.needs_restart = None, False
        self.restarts += 1

    def close(self) -> None:
        self.closes += 1


def play(
    env: BitWidthEnv, action: int, steps: int = 10_000, **reset: Any
) -> tuple[list[float], list[dict[str, Any]]]:
    """Rewards and infos of an episode with one action throughout; the first info is that of reset."""
    rewards, infos = [], [env.reset(**reset)[1]]
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(np.int64(action))
        rewards.append(reward)
        infos.append(info)
        if terminated or truncated:
            break
    return rewards, infos
