"""The figure of a demo."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mqgrad.widths import format_width

from .runs import RunRecord


def plot_runs(records: dict[str, list[RunRecord]], target: float, path: Path, *, title: str) -> None:
    """Held-out loss and bit width over seconds, one colour per controller; thin lines are single seeds."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss_axes, bits_axes = figure.subplots(1, 2)
    for index, (name, runs) in enumerate(records.items()):
        style: dict[str, Any] = {"color": f"C{index}", "linewidth": 2.2 if name == "policy" else 1.4}
        order = 3 if name == "policy" else 2  # the policy on top
        grid = np.linspace(0.0, max(run.final.elapsed_seconds for run in runs), 200)
        losses = [np.interp(grid, *_curve(run, "loss"), left=np.nan, right=np.nan) for run in runs]
        shared = ~np.isnan(losses).any(axis=0)  # a mean only where all seeds have a value
        loss_axes.plot(grid[shared], np.mean(losses, axis=0)[shared], label=name, zorder=order, **style)
        for run in runs:
            loss_axes.plot(*_curve(run, "loss"), color=style["color"], linewidth=0.5, alpha=0.4)
            bits_axes.step(
                *_curve(run, "bits"), color=style["color"], linewidth=1.2, where="pre", zorder=order
            )
    loss_axes.axhline(target, color="black", linestyle=":", linewidth=1, label="target")
    loss_axes.set(xlabel="seconds of training", ylabel="held-out loss", yscale="log")
    figure.legend(loc="outside lower center", ncols=len(records) + 1, frameon=False, fontsize="small")
    bits_axes.set(xlabel="seconds of training", ylabel="bit width")
    bits_axes.set_yscale("log", base=2)
    bits_axes.yaxis.set_major_formatter(lambda bits, _: format_width(bits))
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _curve(run: RunRecord, what: str) -> tuple[list[float], list[float]]:
    seconds = [point.elapsed_seconds for point in run.points]
    values = [point.heldout["loss"] if what == "loss" else float(point.bits) for point in run.points]
    return seconds, values
