"""The main job from end to end: learn a policy, freeze it, drive runs with it that it has not seen."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mqgrad.agents.checkpoint import latest_checkpoint
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.export import export
from mqgrad.agents.train import train
from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.files import replace_file
from mqgrad.trainers.clusters.distributed import Distributed
from mqgrad.trainers.link import LinkEmulation
from mqgrad.widths import Width

from .compare.grids import WIDE_GOODPUT
from .demo_plot import plot_runs
from .provenance import git_revision, script_origin
from .recorded_run import progress_with_status
from .runs import RunRecord, run_training
from .sweep.axes import FP32, System

WORKLOAD = "digits-cnn"
LINK = LinkEmulation(mbit_per_s=20.0, latency_ms=0.5)
BUDGET_SECONDS = 6.0
TRAINED_ON: dict[str, Any] = {}
"""Workload settings while the policy learns: the defaults."""
TESTED_ON: dict[str, Any] = {"width": 40, "batch_size": 24, "learning_rate": 0.04}
"""Workload settings of the runs that it is tested on: another model size, batch size and learning rate."""
WIDTHS: tuple[Width, ...] = (1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 16, 32)
"""What the policy chooses from."""
INTERVAL = 10
"""Iterations per decision."""
TEST_SEEDS = (101, 102, 103)
OTHERS = {
    "goodput rule": WIDE_GOODPUT,
    "½ bit": "fixed:1/2",
    "1 bit": "fixed:1",
    "2 bits": "fixed:2",
    "4 bits": "fixed:4",
    "8 bits": "fixed:8",
    "fp32 DDP": FP32,
}
"""What it is compared with: the rule whose imitation it begins as, fixed widths, and PyTorch's own DDP."""


def run_demo(output: Path, train_seconds: float, console: Console) -> None:
    """Write a policy, TensorBoard logs, all runs, a table and a plot to ``output``; skip what is already there."""
    policy = output / "policy.mqg"
    console.rule("1. learn a bit-selection policy on a real training loop")
    learn_policy(output / "training", policy, train_seconds, console)
    console.rule("2. train anew under the frozen policy, a rule, fixed widths, and in fp32")
    records = load_or_compare(policy, output / "runs.json", console)
    console.rule("3. what came out")
    target = target_loss(records)
    console.print(result_table(records, target))
    plot = output / "runs.png"
    plot_runs(records, target, plot, title=f"digits-cnn, 2 workers, {LINK}")
    logs = output / "training" / "tensorboard"
    console.print(f"plot:           {plot}", soft_wrap=True)
    console.print(f"frozen policy:  {policy}", soft_wrap=True)
    console.print(f"reward curves:  .venv/bin/tensorboard --logdir {logs}", soft_wrap=True)


def learn_policy(run: Path, policy: Path, seconds: float, console: Console) -> None:
    """Train with PPO for some wall-clock seconds and export; an interrupted run is resumed."""
    if policy.exists():
        console.print(f"{policy} is there already: delete it and {run} to learn a new one", soft_wrap=True)
        return
    config = TrainConfig(
        output=run,
        algo="ppo",
        total_seconds=seconds,
        env={
            "workload": WORKLOAD,
            "workload_settings": TRAINED_ON,
            "link_mbit_per_s": LINK.mbit_per_s,
            "link_latency_ms": LINK.latency_ms,
            "budget_seconds": BUDGET_SECONDS,
            "widths": WIDTHS,
            "interval": INTERVAL,
        },
    )
    console.print(f"digits-cnn on 2 workers, {LINK}; episodes of {BUDGET_SECONDS:g} s, {seconds:g} s in all")
    model = train(config, resume=latest_checkpoint(run) is not None)
    export(model, policy)


def load_or_compare(policy: Path, results: Path, console: Console) -> dict[str, list[RunRecord]]:
    """The runs of an earlier demo with the same policy and setting, and those that it did not come to."""
    records = earlier_runs(policy, results, console)
    left = sum(len(TEST_SEEDS) - len(runs) for runs in records.values())
    if left == 0:
        console.print(f"{results} is there already: delete it to run again", soft_wrap=True)
        return records
    if any(records.values()):
        console.print(
            f"{results} is there already: {left} of its runs are missing, and follow", soft_wrap=True
        )
    compare(records, policy, results)
    return records


def earlier_runs(policy: Path, results: Path, console: Console) -> dict[str, list[RunRecord]]:
    """By system; none of a system where there are none, or not of this policy and setting."""
    none: dict[str, list[RunRecord]] = {name: [] for name in systems(policy)}
    if not results.exists() or results.stat().st_mtime <= policy.stat().st_mtime:
        return none
    saved = json.loads(results.read_text())
    if saved.get("setting") != setting():
        console.print(f"{results} is of another setting of the demo: all runs anew", soft_wrap=True)
        return none
    records = {name: [RunRecord.from_dict(run) for run in runs] for name, runs in saved["runs"].items()}
    is_cut_off = any(len(runs) < len(TEST_SEEDS) for runs in records.values())
    if is_cut_off and saved["origin"]["revision"] != git_revision():
        console.print(f"{results} is of another revision: all runs anew", soft_wrap=True)
        return none
    return records


def save_runs(records: dict[str, list[RunRecord]], results: Path) -> None:
    """For a second demo to read."""
    rows = {name: [record.to_dict() for record in runs] for name, runs in records.items()}
    saved = {"setting": setting(), "origin": script_origin("mqgrad"), "runs": rows}
    replace_file(results, json.dumps(saved) + "\n")


def setting() -> dict[str, Any]:
    """Of the runs that are compared, beside the policy: as it is kept with them, and looked for again."""
    return {
        "workload": WORKLOAD,
        "settings": TESTED_ON,
        "workers": 2,
        "link": str(LINK),
        "budget_seconds": BUDGET_SECONDS,
        "seeds": list(TEST_SEEDS),
        "systems": OTHERS,
    }


def systems(policy: Path) -> dict[str, System]:
    """What is compared, by the names that the table and the plot have for it."""
    others = {name: System.parse(system) for name, system in OTHERS.items()}
    return {"policy": System(str(policy), DEFAULT_COMPRESSOR), **others}


def compare(records: dict[str, list[RunRecord]], policy: Path, results: Path) -> None:
    """Add the runs that are missing of each system, one after another on the same workers; each is kept at once."""
    compared = systems(policy)
    missing = [
        (seed, name) for i, seed in enumerate(TEST_SEEDS) for name in compared if i >= len(records[name])
    ]
    with Distributed(WORKLOAD, TESTED_ON) as cluster, progress_with_status() as progress:
        bar = progress.add_task("runs", total=len(missing), status="")
        for seed, name in missing:
            progress.update(bar, status=f"{name}, seed {seed}")
            records[name].append(_run(cluster, compared[name], seed))
            save_runs(records, results)
            progress.advance(bar)


def _run(cluster: Distributed, system: System, seed: int) -> RunRecord:
    return run_training(
        cluster,
        system.controller_of_run(),
        seed,
        compressor=system.compressor,
        method=system.method,
        link=LINK,
        budget_seconds=BUDGET_SECONDS,
    )


def target_loss(records: dict[str, list[RunRecord]]) -> float:
    """The lowest smoothed held-out loss that every fp32 run reaches."""
    return max(min(filter(None, run.curve.smoothed)) for run in records["fp32 DDP"])


def result_table(records: dict[str, list[RunRecord]], target: float) -> Table:
    """Means over seeds. The mean time to the target is over the runs that reached it; (2/3) says how many did."""
    table = Table(
        title=f"{len(TEST_SEEDS)} seeds, {BUDGET_SECONDS:g} s each, {LINK}\n"
        f"target: held-out loss {target:.3f}, which every fp32 run reaches"
    )
    for column in ("controller", "s to target", "final loss", "accuracy", "steps", "MiB sent", "bits"):
        table.add_column(column, justify="left" if column == "controller" else "right")
    for name, runs in records.items():
        table.add_row(name, _time_to(runs, target), *_means(runs))
    return table


def _time_to(runs: list[RunRecord], target: float) -> str:
    times = [t for run in runs if (t := run.curve.seconds_to(target)) is not None]
    reached = f" ({len(times)}/{len(runs)})" if len(times) < len(runs) else ""
    return f"{statistics.fmean(times):.2f}{reached}" if times else "never"


def _means(runs: list[RunRecord]) -> list[str]:
    mean = statistics.fmean
    return [
        f"{mean(run.curve.late or math.nan for run in runs):.3f}",
        f"{mean(run.final.heldout['accuracy'] for run in runs):.3f}",
        f"{mean(run.final.iteration for run in runs):.0f}",
        f"{mean(run.final.wire_bytes / 2**20 for run in runs):.2f}",
        f"{mean(run.mean_bits for run in runs):.1f}",
    ]
