"""The tables of a comparison's report, as text."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..estimates import Estimate, Ratio, paired_ratio
from ..runs import PARTS
from ..sweep.axes import System, exchanges_nothing
from .cells import VERDICTS, CellSummary, SystemSummary, verdict
from .labels import has_policy, is_marked, system_label
from .overall import OverallSummary, WorstCell

_NONE = "—"
_TONES = {"faster": -1.0, "undecided": 0.0, "slower": 1.0, "missed": None, "unknown": None, "failed": 1.0}


class Shaded(NamedTuple):
    """Text of a table on a colour."""

    text: str
    tone: float | None
    """From -1, much faster, over 0, undecided, to 1, much slower or failed; None if not known: a bound."""


class Table(NamedTuple):
    """Cells; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Shaded]]


def ratio_table(cells: Sequence[CellSummary], overall: Sequence[OverallSummary]) -> Table:
    """Time to target over fp32's: one row a system, one column a cell. The best of a column is marked.

    Of several cells there is the worst, too. What all cells have in common is left out of their names.
    """
    several, common = len(cells) > 1, _common_name(cells)
    header = ["system", "all cells", *(["worst"] if several else [])]
    header += [str(cell).removeprefix(common) for cell in cells]
    by_cell = [{summary.system: summary for summary in cell.systems} for cell in cells]
    best = [_best(cell) for cell in cells]
    rows: list[list[str | Shaded]] = []
    for each in overall:
        label = system_label(each.system)
        row: list[str | Shaded] = [f"**{label}**" if is_marked(each.system) else label]
        row.append(_mean_ratio(each, "fp32"))
        if several:
            row.append(_worst(each.worst.get("fp32"), common))
        for cell, by_system, winner in zip(cells, by_cell, best, strict=True):
            summary = by_system.get(each.system)
            row.append(_NONE if summary is None else _shaded(summary, each.system == winner, cell.most_runs))
        rows.append(row)
    return Table(header, rows)


def _common_name(cells: Sequence[CellSummary]) -> str:
    """Workload and optimizer, if all of several cells have the same ones."""
    names = {str(cell).removesuffix(cell.cell.link) for cell in cells}
    return names.pop() if len(cells) > 1 and len(names) == 1 else ""


def overall_table(overall: Sequence[OverallSummary]) -> Table:
    """Geometric means over all cells, one row a system, one column a reference."""
    names = list(overall[0].ratios) if overall else []
    header = ["system", *(f"÷ {name}" for name in names), "cells, against fp32"]
    rows = [
        [system_label(each.system), *(_mean_ratio(each, name) for name in names), _verdicts(each)]
        for each in overall
    ]
    return Table(header, rows)


def worst_table(overall: Sequence[OverallSummary]) -> Table:
    """The cell in which each system does worst, by reference."""
    names = list(overall[0].worst) if overall else []
    rows = [[system_label(each.system), *(_worst(each.worst[name]) for name in names)] for each in overall]
    return Table(["system", *(f"worst ÷ {name}" for name in names)], rows)


def cells_table(cells: Sequence[CellSummary]) -> Table:
    """One row a cell: its target, who came first, how policies and references did, and what bounds it."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.references if name != "fp32"))
    policies = list(dict.fromkeys(s.system for g in cells for s in g.systems if has_policy(s.system)))
    header = ["cell", "target loss", "fastest", "÷ fp32", "against fp32"]
    header += [f"{system_label(policy)} ÷ fp32" for policy in policies]
    header += [f"{name} ÷ fp32" for name in names] + ["ceiling of a time-only schedule, bits"]
    return Table(header, [_cell_row(cell, policies, names) for cell in cells])


def systems_table(cell: CellSummary) -> Table:
    """One row a system, for one cell."""
    names = list(cell.references)
    header = ["system", "s to target", *(f"÷ {name}" for name in names), "final loss", "accuracy"]
    header += ["seconds", "iterations", "wire MiB", "busiest interface, MiB", "mean bits", "runs"]
    rows = [
        [
            _marked(cell, each.system),
            _NONE if cell.target is None else _seconds_to_target(each),
            *(ratio_with_interval(each.ratios[name]) for name in names),
            *_learned(each),
            _number(each.run_seconds, ".2f"),
            _number(each.iterations, ".0f"),
            _number(each.wire_mib, ".2f"),
            _number(each.busiest_mib, ".2f"),
            _number(each.mean_bits if System.parse(each.system).has_width else None, ".2g"),
            ", ".join(f"{count} {outcome}" for outcome, count in each.outcomes.items()),
        ]
        for each in cell.systems
    ]
    return Table(header, rows)


def time_table(cell: CellSummary) -> Table:
    """Where the time of an iteration goes, in milliseconds."""
    header = [
        "system",
        "ms per iteration",
        "computing",
        "waiting",
        *(f"thread: {part}" for part in PARTS[1:]),
    ]
    rows = []
    for each in cell.systems:
        if each.milliseconds:
            whole, compute = each.milliseconds["whole"], each.milliseconds.get("compute")
            waiting = None if compute is None else max(whole - compute, 0.0)
            thread = (each.milliseconds[name] for name in PARTS[1:])
            figures = (whole, compute, waiting, *thread)
            rows.append([system_label(each.system), *(_number(figure, ".2f") for figure in figures)])
    return Table(header, rows)


def _cell_row(cell: CellSummary, policies: Sequence[str], names: Sequence[str]) -> list[str]:
    by_system = {summary.system: summary for summary in cell.systems}
    winner = _best(cell)
    row = [str(cell), _number(cell.target, ".4f")]
    row += (
        [_NONE, _NONE] if winner is None else [system_label(winner), _ratio(by_system[winner].ratios["fp32"])]
    )
    row.append(_counts(cell))
    row += [_place(cell, policy) for policy in policies]
    row += [_reference_to_dense(cell, name) for name in names]
    return [*row, _number(cell.ceiling_bits, ".2f")]


def _counts(cell: CellSummary) -> str:
    """How many systems are faster and slower than fp32."""
    said = [
        verdict(each)
        for each in cell.systems
        if each.system != cell.fp32 and not exchanges_nothing(each.system)
    ]
    return ", ".join(f"{said.count(each)} {each}" for each in VERDICTS if each in said) or _NONE


def _place(cell: CellSummary, system: str) -> str:
    """A system's ratio, and where it stands among all that train."""
    names = [each.system for each in cell.systems if not exchanges_nothing(each.system)]
    if system not in names:
        return _NONE
    ratio = next(each.ratios.get("fp32") for each in cell.systems if each.system == system)
    return _NONE if ratio is None else f"{_ratio(ratio)} (no. {names.index(system) + 1} of {len(names)})"


def _reference_to_dense(cell: CellSummary, name: str) -> str:
    """A reference's own time over fp32's, with the system that it is."""
    reference, fp32 = cell.references.get(name), cell.references.get("fp32")
    ratio = paired_ratio(reference.timing, fp32.timing) if reference and fp32 else None
    if reference is None or ratio is None:
        return _NONE
    told = "" if name in (reference.system, "ideal") else f" ({reference.system})"
    return f"{_ratio(ratio)}{told}"


def _best(cell: CellSummary) -> str | None:
    """The system with the shortest time to the target, of those that reached it with every run, and have run as often
    as any."""
    exact = {
        s.system: r.value
        for s in cell.systems
        if (r := s.ratios.get("fp32")) and r.sign == "=" and s.reached == s.runs == cell.most_runs
    }
    return min(exact, key=lambda name: exact[name], default=None)


def _shaded(summary: SystemSummary, is_best: bool, most_runs: int) -> Shaded:
    said, ratio = verdict(summary), summary.ratios.get("fp32")
    tone = _TONES[said]
    if ratio is not None and tone:
        tone *= min(1.0, 0.2 + abs(math.log2(ratio.value)) / 3)
    text = said if ratio is None else ratio_with_interval(ratio)
    missed = f" ({summary.reached}/{summary.runs})" if said == "missed" else ""
    unfinished = f" ({summary.runs} of {most_runs} seeds)" if 0 < summary.runs < most_runs else ""
    return Shaded(f"{text}{missed}{unfinished}{' ★' if is_best else ''}", tone)


def _marked(cell: CellSummary, system: str) -> str:
    roles = [
        name
        for name, each in cell.references.items()
        if each.system == system and name in ("fp16", "PowerSGD", "oracle") and name != system
    ]
    if cell.target is None:  # nothing tells which is the best
        return system_label(system)
    return system_label(system) + (f" ◂ {', '.join(roles)}" if roles else "")


def _seconds_to_target(summary: SystemSummary) -> str:
    if exchanges_nothing(summary.system):
        return _NONE
    if summary.seconds_to_target is None:
        return f"never (0/{summary.runs})"
    partly = f" ({summary.reached}/{summary.runs})" if summary.reached < summary.runs else ""
    return f"{summary.seconds_to_target:.2f}{partly}"


def _learned(summary: SystemSummary) -> list[str]:
    """Loss and accuracy; of replicas that never meet they say nothing."""
    if exchanges_nothing(summary.system):
        return [_NONE, _NONE]
    return [_estimate(summary.final_loss, ".4f"), _estimate(summary.accuracy, ".3f")]


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else f"{value:{form}}"


def _ratio(ratio: Ratio | None) -> str:
    return _NONE if ratio is None else f"{'' if ratio.sign == '=' else ratio.sign + ' '}{ratio.value:.2f}"


def _verdicts(overall: OverallSummary) -> str:
    if overall.is_fp32:
        return _NONE
    return ", ".join(f"{count} {what}" for what, count in overall.verdicts.items()) or _NONE


def _mean_ratio(overall: OverallSummary, name: str) -> str:
    ratio, compared = overall.ratios.get(name), overall.compared.get(name, 0)
    of = f" ({compared} of {overall.cells})" if ratio is not None and compared < overall.cells else ""
    return _ratio(ratio) + of


def _worst(worst: WorstCell | None, common: str = "") -> str:
    """Ratio and cell, without what all cells have in common."""
    if worst is None:
        return _NONE
    told = "did not finish:" if worst.ratio is None else _ratio(worst.ratio)
    return f"{told} {str(worst.cell).removeprefix(common)}"


def ratio_with_interval(ratio: Ratio | None) -> str:
    """As in ``0.98 [0.95, 1.01]``; a bound, and a ratio without spread, has no interval."""
    if ratio is None or ratio.low is None or ratio.low == ratio.high:  # the latter of fp32 beside itself
        return _ratio(ratio)
    return f"{_ratio(ratio)} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _estimate(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return _NONE
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"
