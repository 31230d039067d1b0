"""The arithmetic of a comparison: time to target, ratios to references, and who missed what.

The target of a group of runs is a held-out loss that every finished fp32 run reached within 60 % of its seconds.
Systems that learn as fp32 does, or somewhat slower, so have time to get there.
A run that never reached it has no time: it is counted, and its system gets a lower bound in place of a ratio, in
which the run counts with the seconds it was given. Means over the other groups alone would favour whoever misses the
hardest targets.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mqgrad.controllers.ceiling import saving_ceiling_bits

from .estimates import (
    Estimate,
    Ratio,
    Timing,
    geometric_mean_with_interval,
    mean_of_fractions,
    mean_of_ratios,
    paired_ratio,
)
from .report_references import Reference, references
from .runs import PARTS
from .sweep_config import SweepConfig
from .sweep_grid import HOOKED, SILENT, Group, dense_of
from .sweep_result import CellResult


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemSummary:
    """What one system did in one group."""

    system: str
    runs: int
    outcomes: dict[str, int]
    """Number of runs by outcome."""
    reached: int
    """Runs that reached the target."""
    seconds_to_target: float | None
    """Mean over the runs that reached it."""
    ratios: dict[str, Ratio | None]
    """Time to target over each reference's; None if some run did not finish."""
    final_loss: Estimate | None
    """Held-out loss at the end, a geometric mean; here and below, over finished runs."""
    accuracy: Estimate | None
    iterations: float | None
    wire_mib: float | None
    mean_bits: float | None
    milliseconds: dict[str, float]
    """Per iteration: the whole of it, and by ``PARTS``. Empty if no run finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSummary:
    """All systems in one group, the fastest first."""

    group: Group
    target: float | None
    """None if no fp32 run finished."""
    references: dict[str, Reference]
    """What ratios refer to here, by name; those that were not run are missing."""
    ceiling_bits: float | None
    """Bits per element that a schedule over time alone can save; see :func:`saving_ceiling_bits`."""
    systems: list[SystemSummary]

    def __str__(self) -> str:
        return str(self.group)


@dataclass(frozen=True, kw_only=True, slots=True)
class OverallSummary:
    """One system over all groups."""

    system: str
    ratios: dict[str, Ratio | None]
    """Geometric means over groups: bounds if a target was missed, None if one of its runs did not finish."""
    compared: dict[str, int]
    """Groups in each mean: all but those in which the reference has no time either."""
    worst: dict[str, str]
    """By reference: the group with the largest ratio, the missed ones before all others."""
    verdicts: dict[str, int]
    """Groups by what :func:`verdict` says of the ratio to fp32."""
    groups: int
    """Groups in which fp32 set a target; it may have no runs yet in some."""


def summarize(config: SweepConfig, results: Sequence[CellResult]) -> list[GroupSummary]:
    """One summary per group that has results, in the order of the configuration."""
    groups = []
    for group in config.groups():
        runs = [result for result in results if result.group == group]
        if runs:
            groups.append(_summarize_group(group, config.systems, runs))
    return groups


def summarize_overall(config: SweepConfig, groups: Sequence[GroupSummary]) -> list[OverallSummary]:
    """One summary per system that trains, the fastest first."""
    summaries = [_overall(system, groups) for system in config.systems if system != SILENT]
    return sorted(summaries, key=lambda summary: rank(summary.ratios.get("fp32")))


TARGET_SHARE = 0.6  # of an fp32 run's seconds, within which it reaches the target


def target_loss(results: Iterable[CellResult]) -> float | None:
    """The largest, over finished fp32 runs, of the loss that one reached within ``TARGET_SHARE`` of its seconds.

    That loss is the lowest running median of three points, lest one lucky evaluation set the target; a run that was
    looked at only later gives its first point. None if no fp32 run finished.
    """
    results = list(results)
    fp32 = dense_of({result.system for result in results})
    dense = [result for result in results if result.system == fp32 and result.finished]
    return max(map(_early_loss, dense), default=None)


def _early_loss(run: CellResult) -> float:
    end = TARGET_SHARE * run.seconds[-1]
    known = [(at, loss) for at, loss in zip(run.seconds, run.losses, strict=True) if loss is not None]
    early = [loss for at, loss in known if at <= end] or [known[0][1]]
    return min(statistics.median_low(early[n : n + 3]) for n in range(max(1, len(early) - 2)))


VERDICTS = ("faster", "undecided", "slower", "missed", "unknown", "failed")


def verdict(summary: SystemSummary) -> str:
    """``faster`` or ``slower`` than fp32 where the interval says so, else ``undecided``; ``missed``, ``failed``;
    ``unknown`` without a run of fp32's to compare with."""
    ratio = summary.ratios.get("fp32")
    if _failed(summary):
        return "failed"
    if ratio is None:
        return "unknown"
    if ratio.sign == "≥":
        return "missed"
    if ratio.low is None or ratio.high is None:
        return "undecided"
    return "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "undecided"


def rank(ratio: Ratio | None) -> tuple[int, float]:
    """Where a time stands among others, the best first: what is known, then bounds, then what has none."""
    if ratio is None:
        return 2, 0.0
    return int(ratio.sign != "="), ratio.value


def _summarize_group(group: Group, systems: Sequence[str], runs: Sequence[CellResult]) -> GroupSummary:
    target = target_loss(runs)
    by_system = {name: own for name in systems if (own := [r for r in runs if r.system == name])}
    timings = {name: _timing(own, target) for name, own in by_system.items() if name != SILENT}
    known = references(by_system, timings, target)
    summaries = [
        _summarize_system(name, own, target, {each: _ratio(timings, name, r) for each, r in known.items()})
        for name, own in by_system.items()
    ]
    return GroupSummary(
        group=group,
        target=target,
        references=known,
        ceiling_bits=_ceiling(by_system.get(HOOKED, [])),
        systems=sorted(summaries, key=lambda summary: rank(summary.ratios.get("fp32"))),
    )


def _timing(runs: Sequence[CellResult], target: float | None) -> Timing | None:
    """None if there is no target, or a run did not finish."""
    if target is None or not all(run.finished for run in runs):
        return None
    times = {run.seed: run.seconds_to(target) for run in runs}
    spent = {run.seed: run.seconds[-1] for run in runs}
    seconds = {seed: spent[seed] if time is None else time for seed, time in times.items()}
    return Timing(seconds, None not in times.values())


def _ratio(timings: dict[str, Timing | None], system: str, reference: Reference) -> Ratio | None:
    return paired_ratio(timings.get(system), reference.timing)


def _ceiling(dense: Sequence[CellResult]) -> float | None:
    ceilings = [saving_ceiling_bits(run.gradient_norms_sq) for run in dense if run.gradient_norms_sq]
    return statistics.fmean(ceilings) if ceilings else None


def _summarize_system(
    name: str, runs: Sequence[CellResult], target: float | None, ratios: dict[str, Ratio | None]
) -> SystemSummary:
    times = [] if target is None or name == SILENT else [run.seconds_to(target) for run in runs]
    reached = [seconds for seconds in times if seconds is not None]
    finished = [run for run in runs if run.finished]
    outcomes = [run.outcome for run in runs]
    return SystemSummary(
        system=name,
        runs=len(runs),
        outcomes={outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
        reached=len(reached),
        seconds_to_target=statistics.fmean(reached) if reached else None,
        ratios=ratios,
        final_loss=geometric_mean_with_interval(_values(finished, lambda run: run.heldout["loss"])),
        accuracy=mean_of_fractions(_values(finished, lambda run: run.heldout.get("accuracy"))),
        iterations=_mean(finished, lambda run: run.iterations[-1]),
        wire_mib=_mean(finished, lambda run: None if run.wire_bytes is None else run.wire_bytes / 2**20),
        mean_bits=_mean(finished, lambda run: run.mean_bits),
        milliseconds=_milliseconds(finished),
    )


def _milliseconds(runs: Sequence[CellResult]) -> dict[str, float]:
    """Means over runs of the milliseconds per iteration."""
    per_run = [
        {"whole": run.seconds[-1], **run.parts} | {"iterations": run.iterations[-1]}
        for run in runs
        if all(part in run.parts for part in PARTS)
    ]
    if not per_run:
        return {}
    return {
        name: statistics.fmean(1e3 * each[name] / each["iterations"] for each in per_run)
        for name in ("whole", *PARTS)
    }


def _values(runs: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> list[float]:
    return [each for run in runs if (each := value(run)) is not None]


def _mean(runs: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> float | None:
    values = _values(runs, value)
    return statistics.fmean(values) if values else None


def _overall(system: str, groups: Sequence[GroupSummary]) -> OverallSummary:
    own = [
        (group, summary)
        for group in groups
        for summary in group.systems
        if summary.system == system and group.target is not None
    ]
    names = dict.fromkeys(name for group in groups for name in group.references)
    failed = any(_failed(summary) for _, summary in own)
    known = {name: [r for _, s in own if (r := s.ratios.get(name)) is not None] for name in names}
    verdicts = [verdict(summary) for _, summary in own]
    return OverallSummary(
        system=system,
        ratios={name: None if failed else mean_of_ratios(known[name]) for name in names},
        compared={name: len(known[name]) for name in names},
        worst={name: _worst(own, name) for name in names},
        verdicts={each: verdicts.count(each) for each in VERDICTS if each in verdicts},
        groups=sum(group.target is not None for group in groups),
    )


def _failed(summary: SystemSummary) -> bool:
    return bool(set(summary.outcomes) - {"finished"})


def _worst(own: Sequence[tuple[GroupSummary, SystemSummary]], reference: str) -> str:
    def badness(pair: tuple[GroupSummary, SystemSummary]) -> tuple[int, float]:
        ratio = pair[1].ratios[reference]
        assert ratio is not None
        return (ratio.sign == "≥", ratio.value)

    failed = [group for group, summary in own if _failed(summary)]
    if failed:
        return f"did not finish: {failed[0]}"
    known = [pair for pair in own if pair[1].ratios.get(reference) is not None]
    if not known:
        return ""
    group, summary = max(known, key=badness)
    ratio = summary.ratios[reference]
    assert ratio is not None
    return f"{'' if ratio.sign == '=' else ratio.sign + ' '}{ratio.value:.2f} {group}"
