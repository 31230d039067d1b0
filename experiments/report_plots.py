"""Figures of a comparison, as PNG bytes."""

import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.trainers.methods import DEFAULT_METHOD
from mqgrad.widths import format_width

from .report import GroupSummary, verdict
from .runs import PARTS
from .sweep_grid import DENSE, SILENT, System
from .sweep_result import CellResult

_DPI = 100
_PANELS_A_ROW = 4
_MOST_LINES = 9
_LEAST_RATIO = 1 / 64  # an interval of two seeds can be wider than any axis
_WARM = ("tab:red", "tab:orange", "tab:purple", "tab:pink", "tab:brown", "tab:olive")
_COLD = ("tab:cyan", "tab:green", "slategrey", "yellowgreen", "darkviolet", "teal")
_PART_COLOURS = {"encode": "#4477aa", "wire": "#ee9944", "decode": "#66bbaa", "decide": "#aa3377"}


def system_label(system: str) -> str:
    """What tables and legends call a system."""
    if system == DENSE:
        return "fp32 (fixed:32)"
    if system == SILENT:
        return "none (sends nothing)"
    controller, compressor, *_ = System.parse(system)
    if controller is None or not is_policy(controller):
        return system
    on = "" if compressor == DEFAULT_COMPRESSOR else f" on {compressor}"
    return f"policy {Path(controller).stem}{on}"


def is_policy(controller: str) -> bool:
    """Whether this is a policy file, or the one that comes with the package."""
    return controller == "default" or controller.endswith(".mqg")


def system_styles(systems: Sequence[str]) -> dict[str, dict[str, Any]]:
    """fp32 black, fixed widths dashed from dark to bright, compressors dotted, what adapts thick in warm colours."""
    fixed = [name for name in systems if name.startswith("fixed:") and name != DENSE]
    alone = [name for name in systems if System.parse(name).controller is None]
    adaptive = [name for name in systems if name not in (*fixed, *alone, DENSE)]
    styles: dict[str, dict[str, Any]] = {DENSE: {"color": "black", "linewidth": 1.5}}
    for names, colours, line in (
        (
            fixed,
            colormaps["winter"](np.linspace(0.1, 0.95, max(len(fixed), 1))),
            {"linewidth": 1.2, "linestyle": "--"},
        ),
        (alone, itertools.cycle(_COLD), {"linewidth": 1.8, "linestyle": ":"}),
        (adaptive, itertools.cycle(_WARM), {"linewidth": 2.2}),
    ):
        styles |= {name: {"color": colour, **line} for name, colour in zip(names, colours, strict=False)}
    return {name: styles[name] for name in systems}


def kind_of(system: str) -> str:
    """What a system competes as; of each kind, the plots show the best."""
    controller, compressor, method, _ = System.parse(system)
    if system in (DENSE, SILENT) or is_policy(controller or ""):
        return system
    if method != DEFAULT_METHOD:
        return "method"
    if compressor != DEFAULT_COMPRESSOR:
        name = compressor.partition(":")[0]
        return name if name in ("fp16", "powersgd") else "compressor"
    return "fixed" if (controller or "").startswith("fixed:") else "rule"


def shown_systems(group: GroupSummary) -> list[str]:
    """The systems that a plot of a group has room for: all of a few, of many the fastest of each kind."""
    names = [summary.system for summary in group.systems]  # the fastest first
    if len(names) <= _MOST_LINES:
        return names
    best: dict[str, str] = {}
    for name in names:
        best.setdefault(kind_of(name), name)
    return list(best.values())


def plot_group(group: GroupSummary, results: Sequence[CellResult]) -> bytes:
    """Held-out loss and bit width over seconds, means over the seeds' finished runs, and where an iteration goes."""
    systems = shown_systems(group)
    figure = Figure(figsize=(15, 5), layout="constrained")
    loss_axes, bits_axes, time_axes = figure.subplots(1, 3, width_ratios=(1.25, 1, 1.15))
    for name, style in system_styles(systems).items():
        runs = [r for r in results if r.system == name and r.finished]
        if runs and name != SILENT:
            grid, losses, bits = mean_curves(runs)
            loss_axes.plot(grid, losses, label=system_label(name), **style)
            bits_axes.plot(grid, bits, **style)
    if group.target is not None:
        loss_axes.axhline(group.target, color="grey", linewidth=0.8, label="target")
    loss_axes.set(title="held-out loss", xlabel="seconds of training", ylabel="loss", yscale="log")
    bits_axes.set(title="bits over time", xlabel="seconds of training", ylabel="bit width, mean over seeds")
    bits_axes.set_yscale("log", base=2)
    bits_axes.yaxis.set_major_formatter(lambda bits, _: format_width(bits))
    _plot_times(time_axes, group)
    figure.legend(loc="outside lower center", ncols=8, fontsize="small")
    figure.suptitle(str(group), fontweight="bold")
    return _png(figure)


def plot_ratios(groups: Sequence[GroupSummary], systems: Sequence[str]) -> bytes:
    """Time to target over fp32's, per group, with intervals; grey where the interval includes 1."""
    names = [name for name in systems if name != SILENT]
    columns = min(len(groups), _PANELS_A_ROW)
    rows = math.ceil(len(groups) / columns)
    size = (3.1 * columns + 1.8, rows * (0.6 + 0.28 * len(names)) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    panels[0].set_xscale("log", base=2)
    for axes, group in zip(panels, groups, strict=False):
        _plot_group_ratios(axes, group, names)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    panels[0].set_yticks(range(len(names)), labels=[system_label(name) for name in names])
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    panels[0].set_xlim(_ratio_limits(groups))
    figure.supxlabel(
        "time to target ÷ fp32's, log scale, 95 % intervals\n"
        "Green: faster; red: slower or failed; grey: undecided; orange: a bound",
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


def _plot_times(axes: Axes, group: GroupSummary) -> None:
    """Two bars a system: the training thread's milliseconds, and below them the communication thread's."""
    shown = shown_systems(group)
    known = [summary for summary in group.systems if summary.milliseconds and summary.system in shown]
    for row, summary in enumerate(known):
        spent = summary.milliseconds
        waiting = max(spent["whole"] - spent["compute"], 0.0)
        _stack(axes, row - 0.2, {"computing": spent["compute"], "waiting": waiting}, row == 0)
        _stack(axes, row + 0.2, {part: spent[part] for part in PARTS[1:]}, row == 0)
    axes.set_yticks(range(len(known)), labels=[system_label(each.system) for each in known], fontsize="small")
    axes.invert_yaxis()
    axes.set(title="training thread,\nbelow it the communication thread", xlabel="ms per iteration")


def _stack(axes: Axes, y: float, parts: dict[str, float], with_labels: bool) -> None:
    colours = {"computing": "#555555", "waiting": "#cccccc", **_PART_COLOURS}
    left = 0.0
    for name, value in parts.items():
        label = name if with_labels else "_"
        axes.barh(y, value, height=0.36, left=left, color=colours[name], label=label)
        left += value


def _ratio_limits(groups: Sequence[GroupSummary]) -> tuple[float, float]:
    """Wide enough for all intervals, and for the words that stand for a missing one."""
    ratios = [r for group in groups for s in group.systems if (r := s.ratios.get("fp32")) and r.sign == "="]
    low = min([0.5, *(ratio.low or ratio.value for ratio in ratios)])
    high = max([4.0, *(ratio.high or ratio.value for ratio in ratios)])
    return max(low / 1.2, _LEAST_RATIO), min(high * 1.2, 1 / _LEAST_RATIO)


def _plot_group_ratios(axes: Axes, group: GroupSummary, names: Sequence[str]) -> None:
    axes.set_title(str(group), fontsize="medium")
    axes.axvline(1.0, color="black", linewidth=1)
    for summary in group.systems:
        if summary.system not in names:
            continue
        row, ratio = names.index(summary.system), summary.ratios.get("fp32")
        if ratio is None or ratio.sign != "=":
            said = verdict(summary)
            told = f"✕ {said} ({summary.reached}/{summary.runs})"
            place = axes.get_yaxis_transform()  # of the panel's width, whatever the ratios are
            colour = "tab:red" if said == "failed" else "tab:orange"
            axes.text(
                0.97, row, told, color=colour, va="center", ha="right", fontsize="small", transform=place
            )
            continue
        low, high = ratio.low or ratio.value, ratio.high or ratio.value
        colour = {"slower": "tab:red", "faster": "tab:green"}.get(verdict(summary), "grey")
        error = [[ratio.value - low], [high - ratio.value]]
        axes.errorbar(ratio.value, row, xerr=error, fmt="o", color=colour, capsize=3)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", alpha=0.3)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()
