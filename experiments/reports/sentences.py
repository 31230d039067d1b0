"""What the report of a comparison says in sentences: how it was run, and what did not go as planned."""

import collections
import statistics
from collections.abc import Sequence

from ..sweep.axes import Link
from ..sweep.config import SweepConfig
from ..sweep.result import RunResult
from .cells import TARGET_SHARE, CellSummary
from .labels import system_label

_REASON_CHARACTERS = 160  # of an attempt that has been repeated


def failures(results: Sequence[RunResult]) -> list[str]:
    """One line for each run that did not finish."""
    return [f"{each.run}: {each.outcome}: {each.reason}" for each in results if not each.finished]


def retries(results: Sequence[RunResult]) -> list[str]:
    """One line for each run whose first attempt failed and was repeated: what became of it, and why."""
    return [
        f"{each.run}: {each.outcome} after an attempt that failed: {each.retried[:_REASON_CHARACTERS]}"
        for each in results
        if each.retried
    ]


def describe_sweep(config: SweepConfig, cells: Sequence[CellSummary], results: Sequence[RunResult]) -> str:
    """What was run, in a sentence or two, and what its figures lack."""
    kinds = {Link.parse(link).emulated for link in config.links}
    links = {
        frozenset({False}): "links shaped in the kernel (none: not shaped)",
        frozenset({True}): "links EMULATED by pacing the transport",
    }.get(frozenset(kinds), "links shaped in the kernel, or EMULATED by pacing the transport where so named")
    seeds = f"{len(config.seeds)} seeds" if len(config.seeds) > 1 else "1 seed"
    return (
        f"{config.hosts} hosts on one machine, {seeds}, {links}{_dates(results)}."
        f"{_others(results)}{_revisions(results)}{_missing(config, results)}"
        f"{_failed_references(cells)}"
    )


def _dates(results: Sequence[RunResult]) -> str:
    """From the first run to the last."""
    minutes = sorted(each.started[:16].replace("T", " ") for each in results if each.started is not None)
    return f", {minutes[0]} to {minutes[-1]} UTC" if minutes else ""


def _missing(config: SweepConfig, results: Sequence[RunResult]) -> str:
    runs, done = list(config.runs()), {each.run for each in results}
    missing = collections.Counter(str(run.cell) for run in runs if run not in done)
    if not missing:
        return ""
    told = ", ".join(f"{count} of {cell}" for cell, count in missing.items())
    return f" UNFINISHED: {missing.total()} of {len(runs)} runs are missing: {told}."


def _failed_references(cells: Sequence[CellSummary]) -> str:
    told = [f"{cell}: {lack}" for cell in cells if (lack := _lacking(cell))]
    if not told:
        return ""
    return f" FAILED RUNS OF REFERENCES, whose seeds are left out of ratios to them: {'; '.join(told)}."


def _lacking(cell: CellSummary) -> str:
    """``1 of 3 fp32 (plain-ddp)``; empty if every reference finished all its runs."""
    runs = {summary.system: summary.runs for summary in cell.systems}
    failed = {each.system: each.failed for each in cell.references.values() if each.failed}
    return ", ".join(f"{n} of {runs[name]} {system_label(name)}" for name, n in failed.items())


def _others(results: Sequence[RunResult]) -> str:
    cores = [each.others_cores for each in results if each.others_cores is not None]
    if not cores:
        return ""
    return (
        " While the runs were timed, other processes, and the host of a virtual machine, kept "
        f"{statistics.fmean(cores):.1f} cores busy on average, {max(cores):.1f} in the worst run."
    )


def _revisions(results: Sequence[RunResult]) -> str:
    revisions = collections.Counter(each.revision for each in results if each.revision is not None)
    if len(revisions) < 2:
        return ""
    told = ", ".join(f"{revision} ({count} runs)" for revision, count in revisions.items())
    return f" The source CHANGED while the sweep was at work: {told}."


def describe_cell(cell: CellSummary, config: SweepConfig) -> str:
    """The target of a cell, when its runs ended, what no schedule can pass, and which references lack runs."""
    target = "No fp32 run finished: no target." if cell.target is None else f"Target: {cell.target:.4f}."
    if cell.first_look > TARGET_SHARE:
        target += (
            f" TOO FEW SECONDS: fp32 was first looked at after {cell.first_look:.0%} of its own, and its loss then "
            "is the target; a larger --budget-seconds tells more."
        )
    budget = config.budget_of(cell.cell.workload, cell.cell.link)
    ends = [] if budget is None else [f"{budget:g} s of training"]
    ends += [] if config.iterations is None else [f"{config.iterations} iterations"]
    ceiling = (
        ""
        if cell.ceiling_bits is None
        else f" A schedule over time alone can save at most {cell.ceiling_bits:.2f} bits an element here."
    )
    lacking = _lacking(cell)
    left_out = f" Did not finish: {lacking}; ratios to them are over the other seeds." if lacking else ""
    return f"{target} Each run: {' or '.join(ends)}.{ceiling}{left_out}"
