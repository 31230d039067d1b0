"""What training through the hook costs beside plain DDP: intervals, checks and statistics included.

    torchrun --nproc-per-node 2 experiments/benchmarks/hook_overhead.py overhead.json     # two minutes on two cores
    torchrun --nproc-per-node 2 experiments/benchmarks/hook_overhead.py gpt.json --workload bytes-gpt --iterations 20

Replicas of one model, without a hook and with it under each controller, train in short blocks that take turns, in
another order each round, so that a machine that is busy for a while slows all of them. A round gives each controller
one ratio of seconds, the slowest rank's; printed and written is their geometric mean with its 95 % interval, and
behind it the processor time of an iteration of rank 0, medians over rounds: of the training thread, of the
communication thread, and of the backend's. Where ranks share cores, each waits for all ranks' processor time. The
goal is 1.02 for ``fixed:32``. What ``--controllers "fixed:1 fixed:1@4 plain@4"`` names with an @ has DDP's buckets of
4 MiB, without a hook or with it; ``batch-threads`` is DDP without a hook, over a group whose threads, as those of the
hook, let others compute.
"""

import argparse
import os
import pathlib
import random
import statistics
import sys
import threading
from collections.abc import Sequence
from typing import Any

import script
import torch
import torch.distributed as dist

from mqgrad.collectives.own_group import own_group
from mqgrad.controllers import make_controller
from mqgrad.experiments.bench.steps import WARM_UP_STEPS, Replica
from mqgrad.experiments.estimates import geometric_mean_with_interval
from mqgrad.trainers.workloads.workload import Workload, make_workload

PLAIN = "plain"
BATCH_THREADS = "batch-threads"
THREADS = ("training", "communication", "backend")


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seconds, processor = measure(options)
    if dist.get_rank() == 0:
        figures = {name: ratio_to_plain(seconds, name) for name in seconds if name != PLAIN}
        report = {
            "workload": options.workload,
            "ranks": dist.get_world_size(),
            "iterations": options.iterations,
            "rounds": options.rounds,
            "plain_milliseconds": 1e3 * sorted(seconds[PLAIN])[options.rounds // 2],
            "ratio_to_plain": figures,
            "processor_milliseconds": {name: medians(rounds) for name, rounds in processor.items()},
        }
        launcher = f"torchrun --nproc-per-node {dist.get_world_size()}"
        script.write_report(options.json, report, launcher=launcher)
        print_report(report)
    dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = script.parser(__doc__)
    parser.add_argument("json", type=script.output_file, help="file to write")
    parser.add_argument("--workload", default="digits-cnn")
    parser.add_argument(
        "--controllers", default="fixed:32 fixed:1 fixed:4 goodput default", help="by name, perhaps with @MIB"
    )
    parser.add_argument(
        "--iterations", type=script.count, default=100, help="of one block (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=script.count, default=20)
    options = parser.parse_args()
    sys.path.append(os.getcwd())  # where a workload of one's own may lie
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: an interval takes two")
    return options


def measure(
    options: argparse.Namespace,
) -> tuple[dict[str, list[float]], dict[str, list[dict[str, float]]]]:
    """Seconds of an iteration of the slowest rank, and this rank's processor seconds by threads; both by controller
    and round."""
    workload = make_workload(options.workload)
    replicas = {name: new_replica(workload, name) for name in (*options.controllers.split(), PLAIN)}
    orders = random.Random(0)  # the same on all ranks
    seconds: dict[str, list[float]] = {name: [] for name in replicas}
    processor: dict[str, list[dict[str, float]]] = {name: [] for name in replicas}
    for number in range(options.rounds + 1):
        for name in orders.sample(sorted(replicas), len(replicas)):
            before = processor_seconds()
            costs, iterations = replicas[name].measure(options.iterations), options.iterations + WARM_UP_STEPS
            after = processor_seconds()
            slowest = torch.tensor(costs.step_seconds)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if number > 0:  # the first round warms up
                seconds[name].append(float(slowest))
                processor[name].append({key: (after[key] - before[key]) / iterations for key in THREADS})
    for replica in replicas.values():
        replica.close()
    return seconds, processor


def processor_seconds() -> dict[str, float]:
    """Of this process so far, by what its threads are for; the backend's are not Python's."""
    of_python = {thread.native_id: thread.name for thread in threading.enumerate()}
    totals = dict.fromkeys(THREADS, 0.0)
    for task in pathlib.Path("/proc/self/task").iterdir():
        name = of_python.get(int(task.name), "")
        kind = "communication" if name.startswith("mqgrad-comm") else "training" if name else "backend"
        totals[kind] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return totals


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Milliseconds, by threads."""
    return {key: 1e3 * statistics.median(each[key] for each in rounds) for key in THREADS}


def new_replica(workload: Workload, name: str) -> Replica:
    """Of ``CONTROLLER``, ``CONTROLLER@MIB``, ``plain@MIB`` or ``batch-threads@MIB``."""
    decider, _, cap = name.partition("@")
    controller = None if decider in (PLAIN, BATCH_THREADS) else make_controller(decider, 3600.0)
    group = own_group(None, 600.0) if decider == BATCH_THREADS else None
    return Replica(workload, controller, bucket_cap_mb=float(cap) if cap else None, process_group=group)


def ratio_to_plain(seconds: dict[str, list[float]], name: str) -> Sequence[float | None]:
    """Geometric mean over rounds of the controller's seconds over plain DDP's, and its 95 % interval."""
    ratios = [own / plain for own, plain in zip(seconds[name], seconds[PLAIN], strict=True)]
    estimate = geometric_mean_with_interval(ratios)
    assert estimate is not None
    return estimate


def print_report(report: dict[str, Any]) -> None:
    print(f"{report['workload']}, {report['ranks']} ranks, plain DDP {report['plain_milliseconds']:.2f} ms")
    print(f"{'':>20}  time ÷ plain DDP's     processor ms: {', '.join(THREADS)}")
    for name, milliseconds in report["processor_milliseconds"].items():
        value, low, high = report["ratio_to_plain"].get(name, (1.0, 1.0, 1.0))
        of_threads = "  ".join(f"{milliseconds[key]:5.2f}" for key in THREADS)
        print(f"{name:>20}  {value:.3f} [{low:.3f}, {high:.3f}]   {of_threads}")


if __name__ == "__main__":
    main()
