"""What the environment costs on top of the bare training loop: python experiments/benchmarks/env_overhead.py

Both drive the same workers with the same intervals at the same width, in short blocks that take turns, so that a
machine that is busy for a while slows both. The figure is the driver's wall-clock time, so it holds everything that a
step adds: observation, reward, bookkeeping, Gymnasium's own wrappers. A pair of neighbouring blocks gives one ratio;
their median comes with a 95 % interval from the order statistics (a sign test turned round). The goal is below 1.05.

Beside it, with far less noise, the time that steps spend outside of the cluster, as a share of their whole.
"""

import math
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

import mqgrad.envs
from mqgrad.trainers import Distributed

PAIRS, INTERVALS, ITERATIONS, BITS = 60, 5, 5, 4
SECONDS_AT_MOST = 45.0
GOAL = 1.05


def seconds_per_interval(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(INTERVALS):
        run()
    return (time.perf_counter() - start) / INTERVALS


def measure(cluster: Distributed) -> list[tuple[float, float]]:
    """Seconds per interval, (bare, through the environment), of one pair of blocks after another."""
    env = gymnasium.make(mqgrad.envs.ENV_ID, cluster=cluster, interval=ITERATIONS, budget_seconds=1e6)
    env.reset(seed=0)
    action = np.int64(env.get_wrapper_attr("settings").widths.index(BITS))
    drivers = [lambda: cluster.run(ITERATIONS, bits=BITS), lambda: env.step(action)]
    pairs, deadline = [], time.monotonic() + SECONDS_AT_MOST
    for driver in drivers:
        seconds_per_interval(driver)
    while len(pairs) < PAIRS and time.monotonic() < deadline:
        order = (0, 1) if len(pairs) % 2 else (1, 0)  # neither always goes first
        seconds = {which: seconds_per_interval(drivers[which]) for which in order}
        pairs.append((seconds[0], seconds[1]))
    return pairs


def own_share(cluster: Distributed) -> float:
    """Share of a step's seconds that is not the cluster's."""
    env = gymnasium.make(mqgrad.envs.ENV_ID, cluster=cluster, interval=ITERATIONS, budget_seconds=1e6)
    env.reset(seed=0)
    action = np.int64(env.get_wrapper_attr("settings").widths.index(BITS))
    run, inside = cluster.run, 0.0

    def timed_run(*arguments: Any, **options: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        result = run(*arguments, **options)
        inside += time.perf_counter() - start
        return result

    cluster.run = timed_run  # type: ignore[method-assign]
    start = time.perf_counter()
    for _ in range(100):
        env.step(action)
    return 1 - inside / (time.perf_counter() - start)


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % confidence interval of the median: the order statistics n/2 ± 0.98·√n."""
    ordered, n = sorted(values), len(values)
    reach = 0.98 * math.sqrt(n)
    return ordered[max(math.floor(n / 2 - reach), 0)], ordered[min(math.ceil(n / 2 + reach), n - 1)]


def verdict(low: float, high: float) -> str:
    if high < GOAL:
        return f"PASS: below {GOAL - 1:.0%} on top"
    if low > GOAL:
        return f"FAIL: above {GOAL - 1:.0%} on top"
    return f"UNDECIDED: the interval holds {GOAL}; run it on a quieter machine"


def main() -> None:
    with Distributed("digits-cnn") as cluster:
        pairs = measure(cluster)
        own = own_share(cluster)
    bare, env = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    ratios = [through / alone for alone, through in pairs]
    low, high = median_interval(ratios)
    print(f"{platform.processor() or platform.machine()}, digits-cnn, 2 workers, no link emulation")
    print(f"{len(pairs)} pairs of blocks of {INTERVALS} intervals of {ITERATIONS} iterations")
    print(f"bare {bare:.1f} ms, through the environment {env:.1f} ms per interval (medians)")
    print(f"ratio: median {statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f}")
    print(f"outside of the cluster: {own:.2%} of a step")
    print(verdict(low, high))


if __name__ == "__main__":
    main()
