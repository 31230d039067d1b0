"""Figures of a comparison, as PNG bytes."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .report import GroupSummary
from .sweep_cell import CellResult
from .sweep_config import DENSE

_DPI = 100


def controller_label(controller: str) -> str:
    """What tables and legends call a controller."""
    if controller == DENSE:
        return "fp32 (fixed:32)"
    return f"policy {Path(controller).stem}" if controller.endswith(".mqg") else controller


def controller_styles(controllers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Fixed widths thin and dashed, dark to bright; fp32 black; what adapts thick, in colours of its own."""
    fixed = [name for name in controllers if name.startswith("fixed:") and name != DENSE]
    shades = colormaps["winter"](np.linspace(0.1, 0.95, max(len(fixed), 1)))
    styles: dict[str, dict[str, Any]] = {DENSE: {"color": "black", "linewidth": 1.3}}
    for name, shade in zip(fixed, shades, strict=False):
        styles[name] = {"color": shade, "linewidth": 1.2, "linestyle": "--"}
    warm = ("tab:red", "tab:orange", "tab:purple", "tab:pink", "tab:brown", "tab:olive")
    adaptive = [name for name in controllers if name not in styles]
    for index, name in enumerate(adaptive):
        styles[name] = {"color": warm[index % len(warm)], "linewidth": 2.0}
    return styles


def plot_group(group: GroupSummary, results: Sequence[CellResult]) -> bytes:
    """Held-out loss and bit width over seconds of training: means over the seeds' finished runs."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    loss_axes, bits_axes = figure.subplots(1, 2)
    names = [summary.controller for summary in group.controllers]
    for name, style in controller_styles(names).items():
        runs = [r for r in results if r.controller == name and r.finished]
        if runs:
            grid, losses, bits = mean_curves(runs)
            loss_axes.plot(grid, losses, label=controller_label(name), **style)
            bits_axes.plot(grid, bits, **style)
    if group.target is not None:
        loss_axes.axhline(group.target, color="grey", linestyle=":", linewidth=1, label="target")
    loss_axes.set(xlabel="seconds of training", ylabel="held-out loss", yscale="log")
    bits_axes.set(xlabel="seconds of training", ylabel="bit width (mean over seeds)")
    bits_axes.set_yscale("log", base=2)
    bits_axes.set_yticks([1, 2, 4, 8, 16, 32], labels=["1", "2", "4", "8", "16", "32"])
    figure.legend(loc="outside right upper", fontsize="small")
    figure.suptitle(str(group))
    return _png(figure)


def plot_ratios(groups: Sequence[GroupSummary], controllers: Sequence[str]) -> bytes:
    """Time to target over fp32's, per group, with intervals; grey where the interval includes 1."""
    names = [name for name in controllers if name != DENSE]
    figure = Figure(figsize=(3.2 * len(groups) + 1.5, 1.4 + 0.32 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    panels[0].set_xscale("log", base=2)
    for axes, group in zip(panels, groups, strict=True):
        _plot_group_ratios(axes, group, names)
    panels[0].set_yticks(range(len(names)), labels=[controller_label(name) for name in names])
    panels[0].invert_yaxis()
    figure.supxlabel(
        "time to target ÷ fp32's (log scale; left of 1 is faster; grey: the 95 % interval includes 1)",
        fontsize="medium",
    )
    return _png(figure)


def mean_curves(runs: Sequence[CellResult]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds, mean loss and mean bits, where every run has a value."""
    begin = max(run.seconds[0] for run in runs)
    end = max(begin, min(run.seconds[-1] for run in runs))
    grid = np.linspace(begin, end, 200)
    losses = np.mean([np.interp(grid, run.seconds, _floats(run.losses)) for run in runs], axis=0)
    # The width of a point was in force since the point before it.
    bits = [
        np.asarray(run.bits)[np.minimum(np.searchsorted(run.seconds, grid), len(run.bits) - 1)]
        for run in runs
    ]
    return grid, losses, np.mean(bits, axis=0)


def _floats(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _plot_group_ratios(axes: Axes, group: GroupSummary, names: Sequence[str]) -> None:
    axes.set_title(str(group), fontsize="medium")
    axes.axvline(1.0, color="black", linewidth=1)
    for summary in group.controllers:
        if summary.controller == DENSE:
            continue
        row, ratio = names.index(summary.controller), summary.to_dense
        if ratio is None:
            told = f"✕ missed ({summary.reached}/{summary.runs})"
            axes.text(1.05, row, told, color="tab:red", va="center", fontsize="small", clip_on=True)
            continue
        low, high = ratio.low or ratio.value, ratio.high or ratio.value
        colour = "tab:red" if low > 1 else "tab:green" if high < 1 else "grey"
        error = [[ratio.value - low], [high - ratio.value]]
        axes.errorbar(ratio.value, row, xerr=error, fmt="o", color=colour, capsize=3)
    axes.set_xlim(right=max(4.0, axes.get_xlim()[1]))  # room for the words
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", alpha=0.3)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()
