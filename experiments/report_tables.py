"""The tables of a comparison's report, as text."""

from collections.abc import Sequence
from typing import NamedTuple

from .estimates import Bound, Estimate
from .report import ControllerSummary, GroupSummary, OverallSummary
from .report_plots import controller_label

_NONE = "—"


class Table(NamedTuple):
    """Cells as text; the first column names the row."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def overall_table(overall: Sequence[OverallSummary]) -> Table:
    """One row a controller, over all groups."""
    header = ("controller", "time to target ÷ fp32", "÷ oracle", "targets reached", "worst ÷ fp32")
    rows = [
        (
            controller_label(each.controller),
            _bound(each.to_dense),
            _bound(each.to_oracle),
            f"{each.groups - len(each.missed)} of {each.groups}",
            f"target missed: {'; '.join(each.missed)}" if each.missed else each.worst or _NONE,
        )
        for each in overall
    ]
    return Table(header, rows)


def group_table(group: GroupSummary) -> Table:
    """One row a controller, for one workload and link."""
    header = (
        "controller",
        "s to target",
        "÷ fp32",
        "÷ oracle",
        "final loss",
        "accuracy",
        "iterations",
        "wire MiB",
        "mean bits",
        "runs",
    )
    rows = [
        (
            controller_label(each.controller) + (" ◂ oracle" if each.controller == group.oracle else ""),
            _seconds_to_target(each),
            _bound(each.dense_bound) if each.to_dense is None else _estimate(each.to_dense, ".2f"),
            _bound(each.oracle_bound) if each.to_oracle is None else _estimate(each.to_oracle, ".2f"),
            _estimate(each.final_loss, ".4f"),
            _number(each.accuracy, ".3f"),
            _number(each.iterations, ".0f"),
            _number(each.wire_mib, ".2f"),
            _number(each.mean_bits, ".1f"),
            ", ".join(f"{count} {outcome}" for outcome, count in each.outcomes.items()),
        )
        for each in group.controllers
    ]
    return Table(header, rows)


def _seconds_to_target(summary: ControllerSummary) -> str:
    if summary.seconds_to_target is None:
        return f"never (0/{summary.runs})"
    partly = f" ({summary.reached}/{summary.runs})" if summary.reached < summary.runs else ""
    return f"{summary.seconds_to_target:.2f}{partly}"


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else f"{value:{form}}"


def _bound(bound: Bound | None) -> str:
    return _NONE if bound is None else f"{'' if bound.exact else '≥ '}{bound.value:.2f}"


def _estimate(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return _NONE
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"
