"""The main job from end to end: learn a policy, freeze it, drive runs with it that it has not seen."""

import shutil
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console
from rich.table import Table

from mqgrad.agents.checkpoint import latest_checkpoint
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.export import export
from mqgrad.agents.train import train

from .compare.grids import WIDE_GOODPUT
from .compare.progress import run_sweep
from .reports.cells import CellSummary, summarize
from .reports.plots import plot_cell
from .reports.sentences import describe_cell, describe_sweep
from .reports.tables import systems_table
from .sweep.axes import FP32
from .sweep.config import SweepConfig
from .sweep.folder import load_results

COMPARISON = "comparison"
"""Folder of its runs and report, within the demo's."""
WORKLOAD = "digits-cnn"
MBIT_PER_S = 20.0
LINK = f"emulated:{MBIT_PER_S:g}mbit"
BUDGET_SECONDS = 6.0
TRAINING: dict[str, Any] = {
    "workload": WORKLOAD,  # with its default settings
    "link_mbit_per_s": MBIT_PER_S,
    "budget_seconds": BUDGET_SECONDS,
    "widths": (1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 16, 32),
    "interval": 10,
}
"""The environment in which the policy learns."""
TESTED_ON: dict[str, Any] = {"width": 40, "batch_size": 24, "learning_rate": 0.04}
"""Workload settings of the runs that it is tested on: another model size, batch size and learning rate."""
TEST_SEEDS = (101, 102, 103)
OTHERS = (WIDE_GOODPUT, *(f"fixed:{bits}" for bits in ("1/2", 1, 2, 4, 8)), FP32)
"""What it is compared with: the rule whose imitation it begins as, fixed widths, and PyTorch's own DDP."""


def run_demo(output: Path, train_seconds: float, console: Console) -> None:
    """Write a policy, TensorBoard logs, a comparison and a plot to ``output``; skip what is already there."""
    training, policy, plot = output / "training", output / "policy.mqg", output / "runs.png"
    console.rule("1. learn a bit-selection policy on a real training loop")
    learn_policy(training, policy, train_seconds, console)
    console.rule("2. train anew under the frozen policy, a rule, fixed widths, and in fp32")
    config = comparison(policy)
    run_comparison(output / COMPARISON, config, console)
    console.rule("3. what came out")
    results = load_results(output / COMPARISON)
    (cell,) = summarize(config, results)
    plot.write_bytes(plot_cell(cell, results))
    console.print(describe_sweep(config, [cell], results), describe_cell(cell, config))
    console.print(result_table(cell))
    console.print(f"plot:           {plot}", soft_wrap=True)
    console.print(f"frozen policy:  {policy}", soft_wrap=True)
    logs = training / "tensorboard"
    console.print(f"reward curves:  tensorboard --logdir {quote(str(logs))}", soft_wrap=True)


def learn_policy(run: Path, policy: Path, seconds: float, console: Console) -> None:
    """Train with PPO for some wall-clock seconds and export; an interrupted run is resumed."""
    if policy.exists():
        console.print(f"{policy} is there already: delete it and {run} to learn a new one", soft_wrap=True)
        return
    console.print(f"{WORKLOAD} on 2 workers, {LINK}; episodes of {BUDGET_SECONDS:g} s, {seconds:g} s in all")
    config = TrainConfig(output=run, algo="ppo", total_seconds=seconds, env=TRAINING)
    try:
        model = train(config, resume=latest_checkpoint(run) is not None)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on")
        raise
    if (policy.parent / COMPARISON / "config.json").exists():  # runs of an earlier policy are made anew
        shutil.rmtree(policy.parent / COMPARISON)
    export(model, policy)


def run_comparison(folder: Path, config: SweepConfig, console: Console) -> None:
    """What is missing of it.

    Raises:
        ValueError: the folder holds runs of another one, as where it has been moved.
    """
    try:
        run_sweep(folder, config, True, console)
    except ValueError as error:
        raise ValueError(f"{error}; or delete {folder}, to make its runs anew") from error


def comparison(policy: Path) -> SweepConfig:
    """What ``mqgrad compare`` would run."""
    return SweepConfig(
        systems=(str(policy), *OTHERS),
        workloads=(WORKLOAD,),
        links=(LINK,),
        seeds=TEST_SEEDS,
        budget_seconds={WORKLOAD: BUDGET_SECONDS},
        settings={WORKLOAD: TESTED_ON},
    )


def result_table(cell: CellSummary) -> Table:
    """Of the report's table what a terminal has room for: some columns, and means without their intervals."""
    header, rows = systems_table(cell)
    shown = [index for index, name in enumerate(header) if not name.startswith(("÷", "busiest", "runs"))]
    table = Table(title=str(cell), padding=0)  # so that 80 columns hold it
    for index in shown:
        table.add_column(header[index], justify="right" if index else "left", overflow="fold")
    for row in rows:
        system, *figures = (str(row[index]) for index in shown)
        table.add_row(system, *(figure.partition(" [")[0] for figure in figures))
    return table
