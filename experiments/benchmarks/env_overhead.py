"""What the environment costs on top of the bare training loop.

    python experiments/benchmarks/env_overhead.py --json env_overhead.json      # a minute on two cores

Both drive the same workers with the same intervals at the same width, in short blocks that take turns, so that a
machine that is busy for a while slows both. The figure is the driver's wall-clock time, so it holds everything that a
step adds: observation, reward, bookkeeping, Gymnasium's own wrappers. A pair of neighbouring blocks gives one ratio;
printed and written is their geometric mean with its 95 % interval. The goal is below 1.05.

Beside it, with far less noise, the time that steps spend outside of the cluster, as a share of their whole.
"""

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import script

import mqgrad.envs
from mqgrad.experiments.estimates import geometric_mean_with_interval
from mqgrad.experiments.machine_load import OthersLoad
from mqgrad.trainers import Distributed

WORKLOAD, NUM_WORKERS = "digits-cnn", 2
PAIRS, INTERVALS, ITERATIONS, BITS = 60, 5, 5, 4
FEWEST_PAIRS = 6
SECONDS_AT_MOST = 45.0


def seconds_per_interval(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(INTERVALS):
        run()
    return (time.perf_counter() - start) / INTERVALS


def env_step(cluster: Distributed) -> Callable[[], object]:
    """A step of a new environment around the cluster, at the width that is measured."""
    env = gymnasium.make(mqgrad.envs.ENV_ID, cluster=cluster, interval=ITERATIONS, budget_seconds=1e6)
    env.reset(seed=0)
    action = np.int64(env.get_wrapper_attr("settings").widths.index(BITS))
    return lambda: env.step(action)


def measure(cluster: Distributed) -> list[tuple[float, float]]:
    """Seconds per interval of one pair of blocks after another: bare, and through the environment."""
    drivers = [lambda: cluster.run(ITERATIONS, bits=BITS), env_step(cluster)]
    pairs: list[tuple[float, float]] = []
    deadline = time.monotonic() + SECONDS_AT_MOST
    for driver in drivers:
        seconds_per_interval(driver)
    while len(pairs) < FEWEST_PAIRS or (len(pairs) < PAIRS and time.monotonic() < deadline):
        order = (0, 1) if len(pairs) % 2 else (1, 0)  # neither always goes first
        seconds = {which: seconds_per_interval(drivers[which]) for which in order}
        pairs.append((seconds[0], seconds[1]))
    return pairs


def own_share(cluster: Distributed) -> float:
    """Share of a step's seconds that is not the cluster's."""
    step, run, inside = env_step(cluster), cluster.run, 0.0

    def timed_run(*arguments: Any, **options: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        result = run(*arguments, **options)
        inside += time.perf_counter() - start
        return result

    cluster.run = timed_run  # type: ignore[method-assign]
    start = time.perf_counter()
    for _ in range(100):
        step()
    return 1 - inside / (time.perf_counter() - start)


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
    ratio = geometric_mean_with_interval([through_env / bare for bare, through_env in pairs])
    assert ratio is not None
    report = {
        "others_cores": others.cores(),
        "workload": WORKLOAD,
        "num_workers": NUM_WORKERS,
        "bits": BITS,
        "intervals_per_block": INTERVALS,
        "iterations_per_interval": ITERATIONS,
        "ratio_to_bare": ratio,
        "own_share": own,
        "pairs": pairs,
    }
    print(
        f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of a bare loop's; {own:.2%} outside the cluster"
    )
    if options.json is not None:
        script.write_report(options.json, report)


if __name__ == "__main__":
    main()
