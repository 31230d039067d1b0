"""The arithmetic of a comparison over all its cells: mean ratios to references, the worst of them, and verdicts.

A run that never reached its target counts in a mean with the seconds it was given, and makes it a lower bound. Means
over the other cells alone would favour whoever misses the hardest targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..estimates import Ratio, mean_of_ratios, sort_key
from ..sweep.axes import exchanges_nothing
from ..sweep.config import SweepConfig
from .cells import VERDICTS, CellSummary, SystemSummary, verdict


class WorstCell(NamedTuple):
    """The cell in which a system does worst."""

    cell: CellSummary
    ratio: Ratio | None
    """None if one of its runs there did not finish."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverallSummary:
    """One system over all cells."""

    system: str
    is_fp32: bool
    """Whether it is what the others are compared with."""
    ratios: dict[str, Ratio | None]
    """Geometric means over cells: bounds if a target was missed, None if one of its runs did not finish."""
    compared: dict[str, int]
    """Cells in each mean: all but those in which the reference has no time either."""
    worst: dict[str, WorstCell | None]
    """By reference: where a run did not finish, else the largest ratio, those missed before all others; None where
    nothing is known."""
    verdicts: dict[str, int]
    """Cells by what :func:`verdict` says of the ratio to fp32."""
    cells: int
    """Cells in which fp32 set a target; it may have no runs yet in some."""


def summarize_overall(config: SweepConfig, cells: Sequence[CellSummary]) -> list[OverallSummary]:
    """One summary per system that trains, the fastest first."""
    summaries = [
        _overall(system, config.fp32, cells) for system in config.systems if not exchanges_nothing(system)
    ]
    return sorted(summaries, key=lambda summary: sort_key(summary.ratios.get("fp32")))


def _overall(system: str, fp32: str, cells: Sequence[CellSummary]) -> OverallSummary:
    own = [
        (cell, summary)
        for cell in cells
        for summary in cell.systems
        if summary.system == system and cell.target is not None
    ]
    names = dict.fromkeys(name for cell in cells for name in cell.references)
    failed = any(summary.failed for _, summary in own)
    known = {name: [r for _, s in own if (r := s.ratios.get(name)) is not None] for name in names}
    verdicts = [verdict(summary) for _, summary in own]
    return OverallSummary(
        system=system,
        is_fp32=system == fp32,
        ratios={name: None if failed else mean_of_ratios(known[name]) for name in names},
        compared={name: len(known[name]) for name in names},
        worst={name: _worst(own, name) for name in names},
        verdicts={each: verdicts.count(each) for each in VERDICTS if each in verdicts},
        cells=sum(cell.target is not None for cell in cells),
    )


def _worst(own: Sequence[tuple[CellSummary, SystemSummary]], reference: str) -> WorstCell | None:
    failed = [cell for cell, summary in own if summary.failed]
    if failed:
        return WorstCell(failed[0], None)
    known = [(cell, ratio) for cell, summary in own if (ratio := summary.ratios.get(reference)) is not None]
    cell, ratio = max(known, key=lambda pair: (pair[1].sign == "≥", pair[1].value), default=(None, None))
    return None if cell is None else WorstCell(cell, ratio)
