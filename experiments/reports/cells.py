"""The arithmetic of a comparison within one cell: time to target, ratios to references, and who missed the target.

The target of a cell is a held-out loss that every finished fp32 run reached within 60 % of its seconds.
Systems that learn as fp32 does, or somewhat slower, so have time to get there. A run that never reached it has no
time: it is counted, and its system gets a lower bound in place of a ratio, in which the run counts with the seconds
it was given.
"""

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mqgrad.controllers.ceiling import saving_ceiling_bits

from ..estimates import (
    Estimate,
    Ratio,
    mean_loss,
    mean_of_fractions,
    paired_ratio,
    sort_key,
)
from ..runs import PARTS
from ..sweep.axes import HOOKED_FP32, Cell, Link, System, exchanges_nothing
from ..sweep.config import SweepConfig
from ..sweep.result import RunResult
from .references import Reference, references, timing_of

TARGET_SHARE = 0.6  # of an fp32 run's seconds, within which it reaches the target
_FEWEST_NORMS = 5  # of a run that is to tell how they change
VERDICTS = ("faster", "undecided", "slower", "missed", "unknown", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemSummary:
    """What one system did in one cell."""

    system: str
    runs: int
    outcomes: dict[str, int]
    """Number of runs by outcome."""
    reached: int
    """Runs that reached the target."""
    seconds_to_target: float | None
    """Mean over the runs that reached it."""
    ratios: dict[str, Ratio | None]
    """Time to target over each reference's, on the seeds that the reference finished; None if one of its own runs did
    not finish."""
    final_loss: Estimate | None
    """Held-out loss late in runs, :attr:`.LossCurve.late`; here and below, over finished runs."""
    accuracy: Estimate | None
    iterations: float | None
    wire_mib: float | None
    busiest_mib: float | None
    """That the interface of the busiest host has sent; None where there was no lab."""
    mean_bits: float | None
    run_seconds: float | None
    """Of training. Methods that average every some iterations end with an average, which may be after the budget."""
    milliseconds: dict[str, float]
    """Per iteration: the whole of it, and by ``PARTS``, without ``compute`` where that is not known apart from
    waiting (:meth:`.System.tells_waiting`). Empty if no run finished."""

    @property
    def failed(self) -> bool:
        """Whether some run did not finish."""
        return bool(set(self.outcomes) - {"finished"})


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSummary:
    """All systems in one cell, the fastest first."""

    cell: Cell
    fp32: str
    """The system that is fp32 here."""
    target: float | None
    """None if no fp32 run finished."""
    first_look: float
    """Share of its seconds after which an fp32 run was first looked at, the largest of all runs; 0 without any."""
    references: dict[str, Reference]
    """What ratios refer to here, by name; those that were not run are missing."""
    ceiling_bits: float | None
    """Bits per element that a schedule over time alone can save; see :func:`saving_ceiling_bits`."""
    systems: list[SystemSummary]

    def __str__(self) -> str:
        return str(self.cell)

    @property
    def most_runs(self) -> int:
        """Runs of the system that has most: while a comparison goes on, others lack seeds."""
        return max((summary.runs for summary in self.systems), default=0)


def summarize(config: SweepConfig, results: Sequence[RunResult]) -> list[CellSummary]:
    """One summary per cell that has results, in the order of the configuration."""
    cells = []
    for cell in config.cells():
        runs = [result for result in results if result.cell == cell]
        if runs:
            cells.append(_summarize_cell(cell, config, runs))
    return cells


def target_loss(results: Iterable[RunResult], fp32: str) -> float | None:
    """The largest, over finished fp32 runs, of the smoothed loss that one reached within ``TARGET_SHARE`` of its
    seconds; a run that was looked at only later gives its first point. None if no fp32 run finished."""
    dense = [result for result in results if result.system == fp32 and result.finished]
    return max((loss for loss in map(_early_loss, dense) if loss is not None), default=None)


def _early_loss(run: RunResult) -> float | None:
    end = TARGET_SHARE * run.seconds[-1]
    points = zip(run.seconds, run.curve.smoothed, strict=True)
    known = [(at, loss) for at, loss in points if loss is not None]
    return min((loss for at, loss in known if at <= end), default=known[0][1] if known else None)


def _first_look(results: Iterable[RunResult], fp32: str) -> float:
    dense = [result for result in results if result.system == fp32 and result.finished and result.seconds]
    return max((run.seconds[0] / run.seconds[-1] for run in dense), default=0.0)


def verdict(summary: SystemSummary) -> str:
    """``faster`` or ``slower`` than fp32 where the interval says so, else ``undecided``; ``missed``, ``failed``;
    ``unknown`` without a run of fp32's to compare with."""
    ratio = summary.ratios.get("fp32")
    if summary.failed:
        return "failed"
    if ratio is None:
        return "unknown"
    if ratio.sign == "≥" or summary.reached < summary.runs:  # also on a seed that fp32 lacks
        return "missed"
    if ratio.low is None or ratio.high is None:
        return "undecided"
    return "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "undecided"


def _summarize_cell(cell: Cell, config: SweepConfig, runs: Sequence[RunResult]) -> CellSummary:
    target = target_loss(runs, config.fp32)
    by_system = {name: own for name in config.systems if (own := [r for r in runs if r.system == name])}
    known = references(by_system, target, config.fp32)
    summaries = [_summarize_system(name, own, target, known) for name, own in by_system.items()]
    return CellSummary(
        cell=cell,
        fp32=config.fp32,
        target=target,
        first_look=_first_look(runs, config.fp32),
        references=known,
        ceiling_bits=_ceiling(by_system, known.get("goodput")),
        systems=sorted(summaries, key=lambda summary: sort_key(summary.ratios.get("fp32"))),
    )


def _ratios(
    name: str, runs: Sequence[RunResult], target: float | None, known: dict[str, Reference]
) -> dict[str, Ratio | None]:
    has_time = not exchanges_nothing(name) and all(run.finished for run in runs)
    timing = timing_of(runs, target) if has_time else None
    return {each: paired_ratio(timing, reference.timing) for each, reference in known.items()}


def _ceiling(by_system: dict[str, list[RunResult]], rule: Reference | None) -> float | None:
    """From the goodput rule, or where it was not compared, or has too few norms, from fp32 through the hook."""
    for name in (rule.system if rule is not None else "", HOOKED_FP32):
        norms = [weighted_norms(run) for run in by_system.get(name, []) if run.finished]
        if enough := [each for each in norms if len(each) >= _FEWEST_NORMS]:
            return statistics.fmean(saving_ceiling_bits(*zip(*each, strict=True)) for each in enough)
    return None


def weighted_norms(run: RunResult) -> list[tuple[float, float]]:
    """‖ḡ‖² of the mean gradient, with the iterations that each stands for: 1 each in earlier files."""
    norms, iterations = run.gradient_norms_sq, run.iterations
    if len(norms) != len(iterations):
        return [(norm, 1) for norm in norms if norm]
    lengths = (b - a for a, b in itertools.pairwise([0, *iterations]))
    decisions = itertools.groupby(zip(norms, lengths, strict=True), key=lambda pair: pair[0])
    return [(norm, sum(length for _, length in points)) for norm, points in decisions if norm]


def _summarize_system(
    name: str, runs: Sequence[RunResult], target: float | None, known: dict[str, Reference]
) -> SystemSummary:
    times = (
        [] if target is None or exchanges_nothing(name) else [run.curve.seconds_to(target) for run in runs]
    )
    reached = [seconds for seconds in times if seconds is not None]
    finished = [run for run in runs if run.finished]
    outcomes = [run.outcome for run in runs]
    return SystemSummary(
        system=name,
        runs=len(runs),
        outcomes={outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
        reached=len(reached),
        seconds_to_target=statistics.fmean(reached) if reached else None,
        ratios=_ratios(name, runs, target, known),
        final_loss=mean_loss(_values(finished, lambda run: run.curve.late)),
        accuracy=mean_of_fractions(_values(finished, lambda run: run.heldout.get("accuracy"))),
        iterations=_mean(finished, lambda run: run.iterations[-1]),
        wire_mib=_mean(finished, lambda run: None if run.wire_bytes is None else run.wire_bytes / 2**20),
        busiest_mib=_mean(
            finished, lambda run: max(run.interface_bytes) / 2**20 if run.interface_bytes else None
        ),
        mean_bits=_mean(finished, lambda run: run.mean_bits),
        run_seconds=_mean(finished, lambda run: run.seconds[-1]),
        milliseconds=_milliseconds(finished),
    )


def _milliseconds(runs: Sequence[RunResult]) -> dict[str, float]:
    """Means over runs of the milliseconds per iteration."""
    per_run = [
        {"whole": run.seconds[-1], **run.parts} | {"iterations": run.iterations[-1]}
        for run in runs
        if all(part in run.parts for part in PARTS)
    ]
    if not per_run:
        return {}
    tells_waiting = System.parse(runs[0].system).tells_waiting(Link.parse(runs[0].link))
    return {
        name: statistics.fmean(1e3 * each[name] / each["iterations"] for each in per_run)
        for name in ("whole", *PARTS)
        if name != "compute" or tells_waiting
    }


def _values(runs: Sequence[RunResult], value: Callable[[RunResult], float | None]) -> list[float]:
    return [each for run in runs if (each := value(run)) is not None]


def _mean(runs: Sequence[RunResult], value: Callable[[RunResult], float | None]) -> float | None:
    values = _values(runs, value)
    return statistics.fmean(values) if values else None
