"""Figures of a comparison, as PNG bytes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mqgrad.widths import format_width

from ..runs import PARTS
from ..sweep.axes import System, exchanges_nothing
from ..sweep.result import RunResult
from .cells import CellSummary
from .labels import families, has_policy, plot_label, short_labels, shown_systems, system_styles
from .png import png_bytes

_PANELS_A_ROW = 4
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:cyan", "tab:olive")
_POLICY_COLOURS = ("tab:red", "tab:pink")
_POLICY_LINES = ("-", "--", "-.", ":")  # of one colour after the other: as many policies as twice that
_LINES_A_PANEL = len(_COLOURS)  # beside fp32 and policies
_FOLDED_DPI = 80
_UNDIVIDED = "computing and waiting"
_PART_COLOURS = {"encode": "#4477aa", "wire": "#ee9944", "decode": "#66bbaa", "decide": "#aa3377"}


def plot_cell(cell: CellSummary, results: Sequence[RunResult]) -> bytes:
    """Held-out loss and bit width over seconds, means over the seeds' finished runs, and where an iteration goes."""
    systems = shown_systems(cell)
    figure = Figure(figsize=(15, 5), layout="constrained")
    loss_axes, bits_axes, time_axes = figure.subplots(1, 3, width_ratios=(1.25, 1, 1.15))
    for name, style in system_styles(systems).items():
        runs = [r for r in results if r.system == name and r.finished]
        if runs and not exchanges_nothing(name):
            grid, losses, bits = mean_curves(runs)
            loss_axes.plot(grid, losses, label=plot_label(name), **style)
            if name == cell.fp32 or System.parse(name).has_width:
                bits_axes.plot(grid, bits, **style)
    if cell.target is not None:
        loss_axes.axhline(cell.target, color="grey", linewidth=0.8, label="target")
    loss_axes.set(title="held-out loss", xlabel="seconds of training", ylabel="loss")
    _scale_losses([loss_axes])
    bits_axes.set(title="bits over time", xlabel="seconds of training", ylabel="bit width, mean over seeds")
    bits_axes.set_yscale("log", base=2)
    bits_axes.yaxis.set_major_formatter(lambda bits, _: format_width(bits))
    _plot_times(time_axes, cell)
    if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):  # else no run has finished
        figure.legend(loc="outside lower center", ncols=4, fontsize="small")  # more would be cut off
    figure.suptitle(str(cell), fontweight="bold")
    return png_bytes(figure)


_Curves: TypeAlias = Mapping[str, tuple[np.ndarray, np.ndarray]]


def plot_losses(cell: CellSummary, results: Sequence[RunResult]) -> bytes:
    """Held-out loss over seconds of every system: a few of one family in a panel, fp32 and policies in each."""
    curves = _loss_curves(cell, results)
    others = [name for name in curves if name != cell.fp32 and not has_policy(name)]
    panels = _panels(others) or [("", [])]
    columns = max(1, min(len(panels), _PANELS_A_ROW))
    rows = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(3.6 * columns, 5 * rows + 0.4), layout="constrained")
    all_axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes, (title, members) in zip(all_axes, panels, strict=False):
        _plot_panel(axes, curves, members, cell)
        axes.set_title(title, fontsize="medium")
    _scale_losses(all_axes)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("seconds of training; grey: the target", fontsize="medium")
    figure.supylabel("held-out loss", fontsize="medium")
    return png_bytes(figure, _FOLDED_DPI)


def _loss_curves(cell: CellSummary, results: Sequence[RunResult]) -> _Curves:
    """Seconds and losses by system, the fastest first; of those that sent something and finished a run."""
    curves = {}
    for system in (summary.system for summary in cell.systems):
        runs = [run for run in results if run.system == system and run.finished]
        if runs and not exchanges_nothing(system):
            curves[system] = mean_curves(runs)[:2]
    return curves


def _panels(systems: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Titles and systems: families, in parts of as many lines as can be told apart."""
    panels = []
    for family, members in families(systems).items():
        parts = math.ceil(len(members) / _LINES_A_PANEL)
        size = math.ceil(len(members) / parts)
        for part in range(parts):
            number = f", {part + 1} of {parts}" if parts > 1 else ""
            panels.append((f"{family}{number}", members[part * size : (part + 1) * size]))
    return panels


def _plot_panel(axes: Axes, curves: _Curves, members: Sequence[str], cell: CellSummary) -> None:
    styles: dict[str, dict[str, Any]] = {
        name: {"color": c} for name, c in zip(members, _COLOURS, strict=False)
    }
    policies = [name for name in curves if has_policy(name)]
    styles |= {
        name: {"color": c, "linestyle": line, "linewidth": 2.5}
        for name, (line, c) in zip(
            policies, itertools.cycle(itertools.product(_POLICY_LINES, _POLICY_COLOURS))
        )
    }
    styles |= {name: {"color": "black", "linewidth": 2.5} for name in curves if name == cell.fp32}
    labels = short_labels(list(styles))
    for name, style in styles.items():
        axes.plot(*curves[name], label=labels[name], **style)
    if cell.target is not None:
        axes.axhline(cell.target, color="grey", linewidth=0.8)
    axes.tick_params(labelbottom=True)
    # Below: inside it would hide who is slow.
    if styles:
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)


def _scale_losses(all_axes: Sequence[Axes]) -> None:
    """Logarithmic where all losses, and the target, are positive."""
    losses = np.concatenate([[1.0], *(line.get_ydata() for axes in all_axes for line in axes.lines)])
    lowest = np.min(losses, where=np.isfinite(losses), initial=1.0)
    for axes in all_axes:
        axes.set_yscale("log" if lowest > 0 else "linear")


def mean_curves(runs: Sequence[RunResult]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def _plot_times(axes: Axes, cell: CellSummary) -> None:
    """Two bars a system: the training thread's milliseconds, and below them the communication thread's."""
    shown = shown_systems(cell)
    known = [summary for summary in cell.systems if summary.milliseconds and summary.system in shown]
    for row, summary in enumerate(known):
        _stack(axes, row - 0.2, _training_thread(summary.milliseconds))
        _stack(axes, row + 0.2, {part: summary.milliseconds[part] for part in PARTS[1:]})
    labels = short_labels([each.system for each in known])
    axes.set_yticks(range(len(known)), labels=[labels[each.system] for each in known], fontsize="small")
    axes.invert_yaxis()
    axes.set(title="training thread, below it\nthe communication thread", xlabel="ms per iteration")


def _training_thread(spent: Mapping[str, float]) -> dict[str, float]:
    whole, compute = spent["whole"], spent.get("compute")
    if compute is None:
        return {_UNDIVIDED: whole}
    return {"computing": compute, "waiting": max(whole - compute, 0.0)}


def _stack(axes: Axes, y: float, parts: dict[str, float]) -> None:
    colours = {"computing": "#555555", "waiting": "#cccccc", _UNDIVIDED: "#909090", **_PART_COLOURS}
    left, known = 0.0, axes.get_legend_handles_labels()[1]
    for name, value in parts.items():
        label = "_" if name in known else name
        axes.barh(y, value, height=0.36, left=left, color=colours[name], label=label)
        left += value
