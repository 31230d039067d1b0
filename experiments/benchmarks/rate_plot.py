"""The picture of rate_distortion.py: one panel a source, one line a family of codes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

_STYLES: dict[str, dict[str, Any]] = {
    "sparse": {"color": "C2", "marker": "D"},
    "uniform, nearest": {"color": "C0", "marker": "o"},
    "uniform, stochastic": {"color": "C0", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "rotation, contractive": {"color": "C1", "marker": "s"},
    "rotation, unbiased": {"color": "C1", "marker": "s", "linestyle": "--", "markerfacecolor": "white"},
    "bfloat16": {"color": "C7", "marker": "*", "linestyle": "none", "markersize": 10},
    "MQGrad min-max (matrices)": {"color": "C3", "marker": "v"},
    "pi-quant nearest": {"color": "C4", "marker": "^"},
    "pi-quant stochastic": {"color": "C4", "marker": "^", "linestyle": "--", "markerfacecolor": "white"},
    "bitsandbytes": {"color": "C5", "marker": "P", "linestyle": "none", "markersize": 8},
}
_COLUMNS = 4
_TICKS = (1 / 64, 1 / 16, 1 / 4, 1, 2, 4, 8, 16, 64, 256)


def plot(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw NMSE over wire bits per element; the legend takes the last panel."""
    sources = list(dict.fromkeys(point["source"] for point in points))
    rows = -(-(len(sources) + 1) // _COLUMNS)
    figure = Figure(figsize=(4.6 * _COLUMNS, 4.2 * rows), layout="constrained")
    panels = list(figure.subplots(rows, _COLUMNS, sharey=True).flat)
    for panel, source in zip(panels, sources, strict=False):
        _draw(panel, [point for point in points if point["source"] == source])
        panel.set_title(source)
    for panel in panels[len(sources) :]:
        panel.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[-1].legend(handles, labels, loc="center", fontsize=11, frameon=False)
    for index, panel in enumerate(panels[: len(sources)]):
        if index % _COLUMNS == 0:
            panel.set_ylabel("NMSE = ‖Q(x) − x‖² / ‖x‖²")
        if index + _COLUMNS >= len(sources):
            panel.set_xlabel("bits on the wire per element")
    figure.suptitle("Error of one encoding against bits on the wire, scales, indices and padding counted")
    figure.savefig(path, dpi=90)


def _draw(panel: Axes, points: Sequence[dict[str, Any]]) -> None:
    bits = np.geomspace(1 / 100, 16, 200)
    panel.plot(bits, 2.0 ** (-2 * bits), color="black", linewidth=1, label="limit for a Gaussian, 2^(−2b)")
    for family in dict.fromkeys(point["family"] for point in points):
        own = [point for point in points if point["family"] == family]
        style = {"markersize": 5, "linewidth": 1.3, **_STYLES[family]}
        panel.plot([p["wire_bits"] for p in own], [p["nmse"] for p in own], label=family, **style)
    widest = max(16, *(point["wire_bits"] for point in points))
    panel.set(xscale="log", yscale="log", xlim=(1 / 80, 1.25 * widest), ylim=(1e-6, 20))
    panel.xaxis.set_major_locator(FixedLocator(_TICKS))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
    panel.grid(color="0.9")
