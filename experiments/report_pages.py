"""The report of a comparison: a Markdown file and one self-contained HTML file with the same tables."""

import base64
import collections
import html
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .report import GroupSummary, OverallSummary, summarize, summarize_overall
from .report_plots import plot_group, plot_ratios
from .report_tables import Table, group_table, overall_table
from .sweep import load_config, load_provenance, load_results
from .sweep_cell import CellResult
from .sweep_config import Link, SweepConfig

_NOTES = (
    "The target of a workload on a link is the lowest held-out loss that every finished fp32 run reached "
    "within its budget. Ratios are geometric means over seeds, each seed against its own reference run, "
    "with 95 % intervals (Student's t). Below 1 is faster. *Oracle*: the best compared fixed width in hindsight. "
    "Where some run never reached the target, (reached/runs) says so, and the ratio is a lower bound (≥): "
    "that run counts with all the seconds it was given. Where a run did not finish there is no ratio. "
    "Held-out loss is looked at every 5 iterations, outside the clock. Wire MiB are those one rank sends."
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1150px; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-size: 14px; }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; }
td.text { white-space: normal; }
img { max-width: 100%; } pre { background: #f5f5f5; padding: 1em; overflow-x: auto; font-size: 12px; }
"""


class ReportFiles(NamedTuple):
    """What :func:`write_report` has written."""

    markdown: Path
    html: Path


def write_report(folder: Path) -> ReportFiles:
    """Write ``report.md`` and ``report.html`` from what a sweep's folder holds so far."""
    config, results = load_config(folder), load_results(folder)
    groups = summarize(config, results)
    overall = summarize_overall(config, groups)
    files = ReportFiles(folder / "report.md", folder / "report.html")
    files.markdown.write_text(_markdown(config, groups, overall, results))
    files.html.write_text(_html(config, groups, overall, results, load_provenance(folder)))
    return files


def failures(results: Sequence[CellResult]) -> list[str]:
    """One line for each run that did not finish."""
    return [f"{each.cell}: {each.outcome}: {each.reason}" for each in results if not each.finished]


def describe_sweep(config: SweepConfig, results: Sequence[CellResult]) -> str:
    """What was run, in a sentence or two."""
    kinds = {Link.parse(link).emulated for link in config.links}
    total = sum(1 for _ in config.cells())
    links = {
        frozenset({False}): "links shaped in the kernel (none: not shaped)",
        frozenset({True}): "links EMULATED by pacing the transport",
    }.get(frozenset(kinds), "links shaped in the kernel, or EMULATED by pacing the transport where so named")
    done = "" if len(results) == total else f" UNFINISHED: {len(results)} of {total} runs."
    seeds = f"{len(config.seeds)} seeds" if len(config.seeds) > 1 else "1 seed"
    return (
        f"{config.hosts} hosts on one machine, {seeds}, {links}.{_others(results)}{_revisions(results)}{done}"
    )


def _others(results: Sequence[CellResult]) -> str:
    cores = [each.others_cores for each in results if each.others_cores is not None]
    if not cores:
        return ""
    return (
        f" While the runs were timed, other processes kept {statistics.fmean(cores):.1f} cores busy on average, "
        f"{max(cores):.1f} in the worst run."
    )


def _revisions(results: Sequence[CellResult]) -> str:
    revisions = collections.Counter(each.revision for each in results if each.revision is not None)
    if len(revisions) < 2:
        return ""
    told = ", ".join(f"{revision} ({count} runs)" for revision, count in revisions.items())
    return f" The source CHANGED while the sweep was at work: {told}."


def _markdown(
    config: SweepConfig,
    groups: Sequence[GroupSummary],
    overall: Sequence[OverallSummary],
    results: Sequence[CellResult],
) -> str:
    parts = [
        "# Comparison",
        describe_sweep(config, results),
        _NOTES,
        "## All groups",
        _markdown_table(overall_table(overall)),
    ]
    for group in groups:
        parts += [f"## {group}", _target(group, config), _markdown_table(group_table(group))]
    failed = failures(results)
    parts += ["## Runs that did not finish", "\n".join(f"- {line}" for line in failed) or "None."]
    parts += ["## The command that makes this", f"```\n{config.command_line()}\n```"]
    return "\n\n".join(parts) + "\n"


def _html(
    config: SweepConfig,
    groups: Sequence[GroupSummary],
    overall: Sequence[OverallSummary],
    results: Sequence[CellResult],
    origin: dict[str, Any],
) -> str:
    parts = [
        "<h1>Comparison</h1>",
        _paragraph(describe_sweep(config, results)),
        _paragraph(_NOTES.replace("*", "")),
        "<h2>All groups</h2>",
        _html_table(overall_table(overall)),
    ]
    if groups:
        parts.append(_image(plot_ratios(groups, config.controllers), "time to target over fp32's"))
    for group in groups:
        own = [each for each in results if (each.workload, each.link) == (group.workload, group.link)]
        parts += [
            f"<h2>{html.escape(str(group))}</h2>",
            _paragraph(_target(group, config)),
            _html_table(group_table(group)),
            _image(plot_group(group, own), f"loss and bits over seconds, {group}"),
        ]
    failed = "\n".join(failures(results)) or "None."
    configuration = json.dumps({"sweep": config.to_dict(), **origin}, indent=1)
    parts += [
        f"<h2>Runs that did not finish</h2><pre>{html.escape(failed)}</pre>",
        f"<h2>The command that makes this</h2><pre>{html.escape(config.command_line())}</pre>",
        f"<h2>Configuration, versions, machine</h2><pre>{html.escape(configuration)}</pre>",
    ]
    head = f'<meta charset="utf-8"><title>mqgrad compare</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _target(group: GroupSummary, config: SweepConfig) -> str:
    target = "No fp32 run finished: no target." if group.target is None else f"Target: {group.target:.4f}."
    budget = config.budget_seconds.get(group.workload)
    ends = [] if budget is None else [f"{budget:g} s of training"]
    ends += [] if config.iterations is None else [f"{config.iterations} iterations"]
    return f"{target} Each run: {' or '.join(ends)}."


def _markdown_table(table: Table) -> str:
    lines = [table.header, ("---", *["---:"] * (len(table.header) - 1)), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    rows = "\n".join(
        "<tr>" + "".join(f"<td{_kind(cell)}>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    return f"<table><tr>{head}</tr>\n{rows}</table>"


def _kind(cell: str) -> str:
    return ' class="text"' if cell.startswith("target missed") else ""


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _image(png: bytes, description: str) -> str:
    data = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(description)}" src="data:image/png;base64,{data}">'
