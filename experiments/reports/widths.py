"""What systems did during their runs: widths over time, and what their codes report of themselves."""

import bisect
import statistics
from collections.abc import Sequence

from mqgrad.widths import format_width

from ..sweep.result import RunResult
from .cells import CellSummary
from .labels import system_label
from .tables import Table

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Of the seconds of a run, at which the table of widths looks."""


def bits_table(cell: CellSummary, results: Sequence[RunResult]) -> Table:
    """Mean width over seeds at some moments, for systems that changed it."""
    rows = []
    for label, runs in _finished_runs(cell, results):
        if any(len(set(run.bits)) > 1 for run in runs):
            means = [statistics.fmean(_bits_at(run, share) for run in runs) for share in SHARES]
            rows.append([label, *(f"{mean:.3g}" for mean in means), _all_widths(runs)])
    header = ["system", *(f"{share:.0%}" for share in SHARES), "widths used"]
    return Table(header, rows)


def figures_table(cell: CellSummary, results: Sequence[RunResult]) -> Table:
    """What compressors reported at the end, means over seeds."""
    rows = []
    for label, runs in _finished_runs(cell, results):
        names = dict.fromkeys(name for run in runs for name in run.figures)
        means = {name: statistics.fmean(r.figures[name] for r in runs if name in r.figures) for name in names}
        if means:
            rows.append([label, ", ".join(f"{name} {mean:.3g}" for name, mean in means.items())])
    return Table(["system", "reported by its code"], rows)


def _finished_runs(cell: CellSummary, results: Sequence[RunResult]) -> list[tuple[str, list[RunResult]]]:
    """Labels and runs, in the order of the summary."""
    by_system = {
        each.system: [run for run in results if run.system == each.system and run.finished]
        for each in cell.systems
    }
    return [(system_label(system), runs) for system, runs in by_system.items() if runs]


def _bits_at(run: RunResult, share: float) -> float:
    """The width in force at a part of the run: that of a point was since the point before."""
    point = bisect.bisect_left(run.seconds, share * run.seconds[-1])
    return float(run.bits[min(point, len(run.bits) - 1)])


def _all_widths(runs: Sequence[RunResult]) -> str:
    widths = sorted({bits for run in runs for bits in run.bits})
    is_mean = any(max(bits, 1 / bits) % 1 for bits in widths)
    return "of each parameter its own" if is_mean else ", ".join(map(format_width, widths))
