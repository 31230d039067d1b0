"""The figure of a comparison's ratios: one panel a cell, the systems of a family together."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .cells import CellSummary, SystemSummary, verdict
from .labels import families, is_marked, short_labels
from .png import png_bytes

_PANELS_A_ROW = 4
_LEAST_END = 1 / 64  # an interval of two seeds can be wider than any axis
_COLOURS = {"slower": "tab:red", "faster": "tab:green", "failed": "tab:red"}


def plot_ratios(cells: Sequence[CellSummary], systems: Sequence[str]) -> bytes:
    """Time to target over fp32's, per cell and by family, with intervals; grey where the interval includes 1."""
    by_family = families(systems)
    rows = _rows(by_family)
    columns = min(len(cells), _PANELS_A_ROW)
    lines = math.ceil(len(cells) / columns)
    height = 0.6 + 0.22 * (max(rows.values()) + 2)
    figure = Figure(figsize=(max(2.9 * columns, 5) + 2.2, lines * height + 0.6), layout="constrained")
    panels = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    panels[0].set_xscale("log", base=2)
    for axes, cell in zip(panels, cells, strict=False):
        _plot_cell(axes, cell, rows)
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    panels[0].set_xlim(_limits(cells))
    panels[0].set_ylim(max(rows.values()) + 0.7, -0.7)
    for first in panels[::columns]:
        _name_rows(first, rows, by_family)
    figure.supxlabel(
        "time to target ÷ fp32's, log scale, 95 % intervals\n"
        "green: faster; red: slower or failed; grey: undecided; orange: a bound",
        fontsize="medium",
    )
    return png_bytes(figure)


def _rows(by_family: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Where families and their systems stand, from the top; a free row before every family but the first."""
    lines: list[str] = []
    for family, systems in by_family.items():
        lines += [*([""] if lines else []), family, *systems]
    return {name: row for row, name in enumerate(lines) if name}


def _name_rows(axes: Axes, rows: Mapping[str, int], by_family: Mapping[str, Sequence[str]]) -> None:
    labels = short_labels([name for name in rows if name not in by_family])
    axes.set_yticks(list(rows.values()), labels=[labels.get(name, name) for name in rows], fontsize="small")
    for label, name in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if is_marked(name) else "normal")
        label.set_fontstyle("italic" if name in by_family else "normal")


def _plot_cell(axes: Axes, cell: CellSummary, rows: Mapping[str, int]) -> None:
    axes.set_title(str(cell).replace(" @ ", "\n"), fontsize="medium")
    axes.axvline(1.0, color="black", linewidth=1)
    for summary in cell.systems:
        if summary.system in rows:
            _plot_ratio(axes, summary, rows[summary.system])
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}" if ratio >= 1 else f"1/{1 / ratio:g}")
    axes.grid(axis="x", alpha=0.4)
    axes.set_axisbelow(True)
    odd = [row for row in rows.values() if row % 2]
    axes.hlines(odd, 0, 1, "0.93", transform=axes.get_yaxis_transform(), zorder=0)  # behind the intervals


def _plot_ratio(axes: Axes, summary: SystemSummary, row: int) -> None:
    ratio, said = summary.ratios.get("fp32"), verdict(summary)
    if ratio is None or ratio.sign != "=":
        bound = "" if ratio is None else f" {ratio.sign} {ratio.value:.2g}"
        told = f"✕ {said} ({summary.reached}/{summary.runs}){bound}"
        axes.text(
            0.98,
            row,
            told,
            transform=axes.get_yaxis_transform(),
            color=_COLOURS.get(said, "tab:orange"),
            va="center",
            ha="right",
            fontsize="small",
            bbox={"color": "white", "pad": 0.5},
        )
        return
    low, high = ratio.low or ratio.value, ratio.high or ratio.value
    error = [[ratio.value - low], [high - ratio.value]]
    axes.errorbar(
        ratio.value, row, xerr=error, fmt="o", markersize=4.5, color=_COLOURS.get(said, "grey"), capsize=2
    )


def _limits(cells: Sequence[CellSummary]) -> tuple[float, float]:
    """Wide enough for all ratios, for intervals within reason, and for the words that stand for a missing one."""
    ratios = [r for cell in cells for s in cell.systems if (r := s.ratios.get("fp32")) and r.sign == "="]
    values = [ratio.value for ratio in ratios]
    ends = [end for ratio in ratios for end in (ratio.low, ratio.high) if end is not None]
    within = [min(max(end, _LEAST_END), 1 / _LEAST_END) for end in ends]
    return min([0.5, *values, *within]) / 1.2, max([4.0, *values, *within]) * 1.2
