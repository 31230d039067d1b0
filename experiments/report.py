"""The arithmetic of a comparison: time to target, ratios, intervals, and who missed what.

The target of a workload on a link is the lowest held-out loss that every finished fp32 run reached within its budget.
A run that never reached it has no time: it is counted, and its controller gets no ratio there but a lower bound, in
which the run counts with the seconds it was given. Means over the other groups alone would favour whoever misses the
hardest targets.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .estimates import Bound, Estimate, mean_of_bounds, mean_with_interval, paired_ratio
from .sweep_cell import CellResult
from .sweep_config import DENSE, SweepConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSummary:
    """What one controller did for one workload on one link."""

    controller: str
    runs: int
    outcomes: dict[str, int]
    """Number of runs by outcome."""
    reached: int
    """Runs that reached the target."""
    seconds_to_target: float | None
    """Mean over the runs that reached it."""
    to_dense: Estimate | None
    """Time to target over fp32's, geometric mean over seeds; None unless every run reached it."""
    to_oracle: Estimate | None
    """The same over the best fixed width in hindsight."""
    dense_bound: Bound | None
    """``to_dense``, or at least this; None if some run did not finish."""
    oracle_bound: Bound | None
    """The same of ``to_oracle``."""
    final_loss: Estimate | None
    """Held-out loss at the end, over finished runs."""
    accuracy: float | None
    iterations: float | None
    wire_mib: float | None
    mean_bits: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSummary:
    """All controllers on one workload and link."""

    workload: str
    link: str
    target: float | None
    """None if no fp32 run finished."""
    oracle: str | None
    """The fixed width that reached the target soonest; None if none reached it with every seed."""
    controllers: list[ControllerSummary]

    def __str__(self) -> str:
        return f"{self.workload} @ {self.link}"


@dataclass(frozen=True, kw_only=True, slots=True)
class OverallSummary:
    """One controller over all groups."""

    controller: str
    to_dense: Bound | None
    """Geometric mean over all groups: a lower bound if a target was missed, None if a run did not finish."""
    to_oracle: Bound | None
    groups: int
    """Groups in which it has runs and fp32 set a target."""
    missed: list[str]
    """Of these, where some run did not reach the target, with the counts."""
    worst: str
    """A missed group if there is one, else the group with the largest ratio to fp32."""


def summarize(config: SweepConfig, results: Sequence[CellResult]) -> list[GroupSummary]:
    """One summary per workload and link that have results, in the order of the configuration."""
    groups = []
    for workload in config.workloads:
        for link in config.links:
            runs = [r for r in results if (r.workload, r.link) == (workload, link)]
            if runs:
                groups.append(_summarize_group(workload, link, config.controllers, runs))
    return groups


def summarize_overall(config: SweepConfig, groups: Sequence[GroupSummary]) -> list[OverallSummary]:
    """One summary per controller."""
    return [_overall(controller, groups) for controller in config.controllers]


def target_loss(results: Iterable[CellResult]) -> float | None:
    """The lowest held-out loss that every finished fp32 run reached; None if none finished."""
    lowest = [
        min(loss for loss in result.losses if loss is not None)
        for result in results
        if result.controller == DENSE and result.finished
    ]
    return max(lowest, default=None)


def _summarize_group(
    workload: str, link: str, controllers: Sequence[str], runs: Sequence[CellResult]
) -> GroupSummary:
    target = target_loss(runs)
    by_controller = {name: [r for r in runs if r.controller == name] for name in controllers}
    present = {name: own for name, own in by_controller.items() if own}
    times = {name: _times(own, target) for name, own in present.items()}
    complete = {name: times[name] for name, own in present.items() if len(times[name]) == len(own)}
    oracle = _oracle(complete)
    return GroupSummary(
        workload=workload,
        link=link,
        target=target,
        oracle=oracle,
        controllers=[
            _summarize_controller(name, own, times[name], complete, oracle) for name, own in present.items()
        ],
    )


def _times(runs: Sequence[CellResult], target: float | None) -> dict[int, float]:
    """Seconds to the target by seed, of the runs that reached it."""
    if target is None:
        return {}
    return {run.seed: seconds for run in runs if (seconds := run.seconds_to(target)) is not None}


def _oracle(complete: dict[str, dict[int, float]]) -> str | None:
    fixed = {name: statistics.geometric_mean(t.values()) for name, t in complete.items() if _is_fixed(name)}
    return min(fixed, key=lambda name: fixed[name], default=None)


def _is_fixed(controller: str) -> bool:
    return controller.partition(":")[0] == "fixed"


def _summarize_controller(
    name: str,
    runs: Sequence[CellResult],
    times: dict[int, float],
    complete: dict[str, dict[int, float]],
    oracle: str | None,
) -> ControllerSummary:
    def ratio_to(reference: str | None) -> Estimate | None:
        if name not in complete or reference not in complete:
            return None
        return paired_ratio(times, complete[reference])

    def bound_to(reference: str | None) -> Bound | None:
        if reference not in complete or not all(run.finished for run in runs):
            return None
        spent = {run.seed: times.get(run.seed, run.seconds[-1]) for run in runs}
        ratio = paired_ratio(spent, complete[reference])
        return None if ratio is None else Bound(ratio.value, name in complete)

    finished = [run for run in runs if run.finished]
    outcomes = [run.outcome for run in runs]
    return ControllerSummary(
        controller=name,
        runs=len(runs),
        outcomes={outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
        reached=len(times),
        seconds_to_target=statistics.fmean(times.values()) if times else None,
        to_dense=ratio_to(DENSE),
        to_oracle=ratio_to(oracle),
        dense_bound=bound_to(DENSE),
        oracle_bound=bound_to(oracle),
        final_loss=mean_with_interval(_values(finished, lambda run: run.heldout["loss"])),
        accuracy=_mean(finished, lambda run: run.heldout.get("accuracy")),
        iterations=_mean(finished, lambda run: run.iterations[-1]),
        wire_mib=_mean(finished, lambda run: None if run.wire_bytes is None else run.wire_bytes / 2**20),
        mean_bits=_mean(finished, lambda run: run.mean_bits),
    )


def _values(runs: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> list[float]:
    return [each for run in runs if (each := value(run)) is not None]


def _mean(runs: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> float | None:
    values = _values(runs, value)
    return statistics.fmean(values) if values else None


def _overall(controller: str, groups: Sequence[GroupSummary]) -> OverallSummary:
    own = [
        (group, summary)
        for group in groups
        for summary in group.controllers
        if summary.controller == controller and group.target is not None
    ]
    missed = [f"{group} ({s.reached}/{s.runs} reached it)" for group, s in own if s.reached < s.runs]
    ratios = {str(group): s.to_dense.value for group, s in own if s.to_dense is not None}
    worst = max(ratios, key=lambda group: ratios[group], default=None)
    return OverallSummary(
        controller=controller,
        to_dense=mean_of_bounds([s.dense_bound for _, s in own]),
        to_oracle=mean_of_bounds([s.oracle_bound for _, s in own]),
        groups=len(own),
        missed=missed,
        worst=missed[0] if missed else "" if worst is None else f"{worst}: {ratios[worst]:.2f}",
    )
