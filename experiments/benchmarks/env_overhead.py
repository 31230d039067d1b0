"""What the environment costs on top of the bare training loop: python experiments/benchmarks/env_overhead.py

Both drive the same workers with the same intervals at the same width, in turn. The figure is the wall-clock time of
the driver, so it holds everything that a step adds: observation, reward, bookkeeping, Gymnasium's own wrappers.
"""

import platform
import statistics
import time

import gymnasium
import numpy as np

import mqgrad.envs
from mqgrad.trainers import Cluster, Distributed

ROUNDS, INTERVALS, ITERATIONS, BITS = 7, 40, 5, 4


def bare(cluster: Cluster) -> float:
    """Seconds per interval without the environment."""
    cluster.reset(0)
    cluster.run(ITERATIONS, bits=BITS)
    start = time.perf_counter()
    for _ in range(INTERVALS):
        cluster.run(ITERATIONS, bits=BITS)
    return (time.perf_counter() - start) / INTERVALS


def through_environment(cluster: Cluster) -> float:
    """Seconds per step of the environment around the same intervals."""
    env = gymnasium.make(mqgrad.envs.ENV_ID, cluster=cluster, interval=ITERATIONS, budget_seconds=1e6)
    env.reset(seed=0)
    action = np.int64(env.unwrapped.settings.widths.index(BITS))
    start = time.perf_counter()
    for _ in range(INTERVALS):
        env.step(action)
    return (time.perf_counter() - start) / INTERVALS


def main() -> None:
    with Distributed("digits-cnn") as cluster:
        rounds = [(bare(cluster), through_environment(cluster)) for _ in range(ROUNDS)]
    ratios = [env / alone for alone, env in rounds]
    print(f"{platform.processor() or platform.machine()}, digits-cnn, 2 workers, no link emulation")
    print(
        f"bare {statistics.median(a for a, _ in rounds) * 1e3:.1f} ms per interval of {ITERATIONS} iterations"
    )
    print(f"env  {statistics.median(e for _, e in rounds) * 1e3:.1f} ms")
    print(
        f"ratio: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f} over {ROUNDS} rounds"
    )


if __name__ == "__main__":
    main()
