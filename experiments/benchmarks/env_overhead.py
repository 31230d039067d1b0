"""What the environment costs on top of the bare training loop.

    python experiments/benchmarks/env_overhead.py --json env_overhead.json      # a minute on two cores

Both drive the same workers with the same intervals at the same width, in short blocks that take turns, so that a
machine that is busy for a while slows both. The figure is the driver's wall-clock time, so it holds everything that a
step adds: observation, reward, bookkeeping, Gymnasium's own wrappers. A pair of neighbouring blocks gives one ratio;
their median comes with a 95 % interval from the order statistics (a sign test turned round). The goal is below 1.05.

Beside it, with far less noise, the time that steps spend outside of the cluster, as a share of their whole.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import script

import mqgrad.envs
from mqgrad.experiments.machine_load import OthersLoad
from mqgrad.experiments.provenance import processor
from mqgrad.trainers import Distributed

WORKLOAD, NUM_WORKERS = "digits-cnn", 2
PAIRS, INTERVALS, ITERATIONS, BITS = 60, 5, 5, 4
FEWEST_PAIRS = 6  # of which the least and the most hold the median with 95 %
SECONDS_AT_MOST = 45.0
GOAL = 1.05


class Pair(NamedTuple):
    """Seconds per interval of two neighbouring blocks."""

    bare: float
    through_env: float


class Figures(NamedTuple):
    bare_seconds: float
    """Per interval, median over blocks."""
    env_seconds: float
    ratio: float
    """Median over pairs."""
    ratio_low: float
    """Of its 95 % interval."""
    ratio_high: float


def seconds_per_interval(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(INTERVALS):
        run()
    return (time.perf_counter() - start) / INTERVALS


def measure(cluster: Distributed) -> list[Pair]:
    """One pair of blocks after another."""
    env = gymnasium.make(mqgrad.envs.ENV_ID, cluster=cluster, interval=ITERATIONS, budget_seconds=1e6)
    env.reset(seed=0)
    action = np.int64(env.get_wrapper_attr("settings").widths.index(BITS))
    drivers = [lambda: cluster.run(ITERATIONS, bits=BITS), lambda: env.step(action)]
    pairs: list[Pair] = []
    deadline = time.monotonic() + SECONDS_AT_MOST
    for driver in drivers:
        seconds_per_interval(driver)
    while len(pairs) < FEWEST_PAIRS or (len(pairs) < PAIRS and time.monotonic() < deadline):
        order = (0, 1) if len(pairs) % 2 else (1, 0)  # neither always goes first
        seconds = {which: seconds_per_interval(drivers[which]) for which in order}
        pairs.append(Pair(seconds[0], seconds[1]))
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


def figures_of(pairs: Sequence[Pair]) -> Figures:
    ratios = [pair.through_env / pair.bare for pair in pairs]
    bare, env = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figures(bare, env, statistics.median(ratios), *median_interval(ratios))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
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


def print_report(report: dict[str, Any]) -> None:
    figures = Figures(**report["figures"])
    print(f"{processor()['cpu']}, {WORKLOAD}, {NUM_WORKERS} workers, no link emulation")
    print(f"{len(report['pairs'])} pairs of blocks of {INTERVALS} intervals of {ITERATIONS} iterations")
    bare, env = 1e3 * figures.bare_seconds, 1e3 * figures.env_seconds
    print(f"bare {bare:.1f} ms, through the environment {env:.1f} ms per interval (medians)")
    interval = f"{figures.ratio_low:.3f} to {figures.ratio_high:.3f}"
    print(f"ratio: median {figures.ratio:.3f}, 95 % interval {interval}")
    print(f"outside of the cluster: {report['own_share']:.2%} of a step")
    print(verdict(figures.ratio_low, figures.ratio_high))


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--json", type=script.output_file, help="write the figures and every pair to this file"
    )
    options = parser.parse_args()
    others = OthersLoad()
    with Distributed(WORKLOAD, num_workers=NUM_WORKERS) as cluster:
        pairs = measure(cluster)
        own = own_share(cluster)
    report = {
        "others_cores": others.cores(),
        "workload": WORKLOAD,
        "num_workers": NUM_WORKERS,
        "bits": BITS,
        "intervals_per_block": INTERVALS,
        "iterations_per_interval": ITERATIONS,
        "figures": figures_of(pairs)._asdict(),
        "own_share": own,
        "pairs": [pair._asdict() for pair in pairs],
    }
    print_report(report)
    if options.json is not None:
        script.write_report(options.json, report)


if __name__ == "__main__":
    main()
