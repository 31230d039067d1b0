"""What the report of a comparison says, apart from how it is written down."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ..sweep.config import SweepConfig
from ..sweep.result import RunResult
from .cells import TARGET_SHARE, CellSummary, summarize
from .labels import MOST_LINES
from .overall import OverallSummary, summarize_overall
from .plots import plot_cell, plot_losses
from .ratio_plot import plot_ratios
from .sentences import describe_cell, describe_sweep, failures, retries
from .tables import Table, cells_table, overall_table, ratio_table, systems_table, time_table, worst_table
from .widths import bits_table, figures_table

_NOTES = (
    "**Target**: the held-out loss that every finished fp32 run of a cell (workload, optimizer and link) reached "
    f"within {100 * TARGET_SHARE:.0f} % of its seconds; what is slower than fp32 has the rest of the time to show "
    "it. Held-out loss is looked at after every 2 iterations, from the 60th on after every 5 % more, of all systems "
    "alike, outside the clock; of methods that average replicas now and then, after their next average.",
    "**Held-out losses are smoothed**, for the target and the times to it: each is the geometric mean of all "
    "evaluations within 10 % of its iterations, as a single one may lie far below those around it. At a run's end "
    "these are earlier ones only, so that a falling loss is shown up to a tenth of the iterations late.",
    "**Times to the target** are interpolated, ln(loss) linearly over seconds, between the first evaluation at or "
    "below the target and the one before, also of methods that average replicas now and then: a round could have "
    "been ended there.",
    "**Ratios** are times to the target, geometric means over seeds, each seed against the reference's run of "
    "the same seed, with 95 % intervals (Student's t). Below 1 is faster; *undecided*: the interval includes "
    "1. Final losses, each of the last tenth of a run's iterations, are geometric means too, or arithmetic ones "
    "where some loss is not positive.",
    "**A target that was missed** makes a ratio a lower bound (≥): the run counts with all the seconds it was "
    "given. Where the reference missed it, the ratio is an upper bound (≤); where both did, there is none, and "
    "a mean says over how many cells it goes. A system with a run that did not finish has no mean; a reference "
    "with one stands for its other seeds, which favours the reference: the page says where. Yellow: a bound, "
    "which tells neither faster nor slower, or nothing to compare with yet.",
    "**References**, chosen in hindsight for each cell: *fp16* and *PowerSGD* are the faster of PyTorch's own hook "
    "and our compressor, PowerSGD at the best of the compared ranks; *oracle* the best of the compared fixed "
    "widths of our code, in each iteration and by the default topology; *goodput* the best of those rules, of which "
    "learned policies begin as an imitation. "
    "*Ideal*: as many iterations as fp32 needs, each as short as those of no-sync, which sends nothing; where a "
    "sweep has only none, the hook without gradients, methods that communicate more rarely can pass it.",
    "**The ceiling** of a time-only schedule is ½·log2(AM/GM) of the squared gradient norms of the goodput rule's "
    "runs, or of those of fp32 through the hook: the most bits per element that one width for the whole model can "
    "save by changing over time, at equal quantization error.",
    "**Order**: the shortest time first, what is bounded after what is known, then what has no time. Plots over time "
    "show fp32, policies and the fastest of each kind where there are many systems.",
    "**Wire MiB** are those one rank sends, as accounted and on average; *busiest interface*: what the kernel "
    "counted at the host that sent most, headers, evaluations and all, but for the first hundredths of a second.",
    "**Time**: links that switch count seconds of training. Training and communication "
    "have a thread each: their times overlap. *Wire* is the time for which the communication thread was blocked, "
    "waiting for slower ranks included. How long PyTorch's DDP (plain-ddp) waits is known only where an emulated "
    "link paces it. *Seconds* are those of a run: methods that average every some iterations may end after the "
    "budget, with an average. The delays of backup-workers are **simulated**; nothing else has any.",
    "**Implementations**: seconds include each code's own. quantized, qsgd, ecq-sgd, rotation and minmax have C++ of "
    "ours. All others are plain torch, smoothness with NumPy: top-k, dgc, gravac, sketched-sgd, terngrad, onebit, "
    "onebit-adam, powersgd, fp16. The tables of where time goes tell what they spend on encoding and decoding.",
    "**Decisions**, of the revision that wrote this page (an older one may have run otherwise), are made every 10 "
    "iterations where a name says no other *interval*, by mqgrad-authors every 5, by "
    "policies as often as where they learned (the packaged one: 10). Where iterations are short, policies and "
    "the goodput rule decide up to ten times less often: four times a second, or once where 32 bits stay in force. "
    "The grids of mqgrad compare give most published rules *interval=5*, as runs have some 100 iterations. Fixed "
    "widths decide nothing, and measure every 100. What measuring and deciding take is in the seconds.",
    "**Mean bits** are given where there is a width to choose. **Rules** that name no code run on ours (quantized).",
)


class Figure(NamedTuple):
    """A picture of the HTML report; the Markdown one has none."""

    png: bytes
    description: str


class Listing(NamedTuple):
    """Text as it is."""

    text: str


Plain: TypeAlias = str | list[str] | Table | Figure | Listing
"""A paragraph or a list, in which stars emphasize as in Markdown; or one of the others."""


class Folded(NamedTuple):
    """What a reader opens to see; the summary says what it is."""

    summary: str
    parts: Sequence[Plain]
    is_open: bool = False


Part: TypeAlias = Plain | Folded


class Section(NamedTuple):
    """A heading and what stands below it: paragraphs, lists, tables, figures and preformatted text in order."""

    heading: str
    parts: Sequence[Part]


def make_sections(
    config: SweepConfig, results: Sequence[RunResult], provenance: dict[str, Any]
) -> list[Section]:
    """Everything that the report says, in order."""
    cells = summarize(config, results)
    overall = summarize_overall(config, cells)
    failed, repeated = failures(results), retries(results)
    return [
        Section("Comparison", [describe_sweep(config, cells, results)]),
        Section(
            "Time to target ÷ fp32's",
            [
                "Below 1 is faster than fp32, above 1 slower, undecided where the 95 % interval includes 1 (in the "
                "page green, red and grey); ≥: only a bound (yellow), where (2/5) means that 2 of 5 runs reached "
                "the target. The fastest first; *all cells* is the geometric mean. ★: the fastest of a cell, from "
                "which others whose intervals overlap its own may not differ.",
                *_overview(cells, overall),
            ],
        ),
        Section("Cells", [cells_table(cells)]),
        Section("How to read this", [list(_NOTES)]),
        Section(
            "Other references than fp32",
            [
                "Times to target ÷ those of fp32, fp16, PowerSGD, the oracle, the goodput rule and the ideal.",
                *_against_references(overall),
            ],
        ),
        *(_cell_section(config, cell, results) for cell in cells),
        Section("Runs that did not finish", [Listing("\n".join(failed)) if failed else "None."]),
        Section("Runs that were repeated", [Listing("\n".join(repeated)) if repeated else "None."]),
        Section("The command that makes this", [Listing(config.command_line())]),
        Section("Versions, machine, labs", [Listing(json.dumps(provenance, indent=1))]),
    ]


def _overview(cells: Sequence[CellSummary], overall: Sequence[OverallSummary]) -> list[Plain]:
    figures: list[Plain] = (
        [Figure(plot_ratios(cells, [each.system for each in overall]), "time to target over fp32's")]
        if cells
        else []
    )
    return [ratio_table(cells, overall), *figures]


def _against_references(overall: Sequence[OverallSummary]) -> list[Folded]:
    return [
        Folded("Geometric means", [overall_table(overall)], is_open=len(overall) <= MOST_LINES),
        Folded("Each system's worst cell", [worst_table(overall)]),
    ]


def _cell_section(config: SweepConfig, cell: CellSummary, results: Sequence[RunResult]) -> Section:
    own = [each for each in results if each.cell == cell.cell]
    figure = Figure(plot_cell(cell, own), f"loss and bits over seconds, and time split, {cell}")
    few = len(cell.systems) <= MOST_LINES
    folded = [
        Folded("Times, losses and bytes of every system", [systems_table(cell)], is_open=few),
        Folded("Where the time of an iteration goes", [time_table(cell)], is_open=few),
    ]
    for summary, table in (
        ("Bits over time", bits_table(cell, own)),
        ("What codes report of themselves", figures_table(cell, own)),
    ):
        if table.rows:
            folded.append(Folded(summary, [table], is_open=few))
    if not few:
        losses = Figure(plot_losses(cell, own), f"loss over seconds of every system, {cell}")
        folded.insert(1, Folded("Loss over time of every system", [losses]))
    return Section(str(cell), [describe_cell(cell, config), figure, *folded])
