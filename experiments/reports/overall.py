"""The arithmetic of a comparison over all its groups: mean ratios to references, the worst of them, and verdicts.

A run that never reached its target counts in a mean with the seconds it was given, and makes it a lower bound. Means
over the other groups alone would favour whoever misses the hardest targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..estimates import Ratio, mean_of_ratios, standing
from ..sweep.axes import SILENT
from ..sweep.config import SweepConfig
from .groups import VERDICTS, GroupSummary, SystemSummary, verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class OverallSummary:
    """One system over all groups."""

    system: str
    is_fp32: bool
    """Whether it is what the others are compared with."""
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


def summarize_overall(config: SweepConfig, groups: Sequence[GroupSummary]) -> list[OverallSummary]:
    """One summary per system that trains, the fastest first."""
    summaries = [_overall(system, config.fp32, groups) for system in config.systems if system not in SILENT]
    return sorted(summaries, key=lambda summary: standing(summary.ratios.get("fp32")))


def _overall(system: str, fp32: str, groups: Sequence[GroupSummary]) -> OverallSummary:
    own = [
        (group, summary)
        for group in groups
        for summary in group.systems
        if summary.system == system and group.target is not None
    ]
    names = dict.fromkeys(name for group in groups for name in group.references)
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
        groups=sum(group.target is not None for group in groups),
    )


def _worst(own: Sequence[tuple[GroupSummary, SystemSummary]], reference: str) -> str:
    failed = [group for group, summary in own if summary.failed]
    if failed:
        return f"did not finish: {failed[0]}"
    known = [(ratio, group) for group, summary in own if (ratio := summary.ratios.get(reference)) is not None]
    if not known:
        return ""
    ratio, group = max(known, key=lambda pair: (pair[0].sign == "≥", pair[0].value))
    return f"{'' if ratio.sign == '=' else ratio.sign + ' '}{ratio.value:.2f} {group}"
