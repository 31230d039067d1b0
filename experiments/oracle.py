"""The oracle, ``--controller oracle``: the best fixed width, known when all of them have been run."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from mqgrad.compressors import make_compressor
from mqgrad.controllers.registry import HINDSIGHT
from mqgrad.spec import build
from mqgrad.widths import Width, check_width, check_widths, format_width

from .runs import RunRecord


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Arguments:
    widths: tuple[Width, ...] = ()
    """Widths to try, increasing; empty: all whole widths of the compressor."""


def oracle_trials(controller: str | None, compressor: str) -> tuple[str, ...]:
    """Controllers to run one after another if ``controller`` is ``oracle[:widths=…]``, else none.

    Raises:
        ValueError: an unknown argument, or a width that the compressor lacks.
    """
    name, _, arguments = (controller or "").partition(":")
    if name != HINDSIGHT:
        return ()
    known = make_compressor(compressor).widths
    try:
        chosen = build(_Arguments, arguments).widths
        widths = check_widths(chosen or [bits for bits in known if bits >= 1])
        return tuple(f"fixed:{format_width(check_width(bits, known))}" for bits in widths)
    except ValueError as error:
        raise ValueError(f"controller {controller!r}: {error}") from None


def best_in_hindsight(trials: Sequence[RunRecord]) -> RunRecord:
    """The record of lowest held-out loss at its end, of those that finished, labelled, with all as its trials."""
    best = min(trials, key=_badness)
    label = f"{HINDSIGHT}: {best.controller} in hindsight"
    return dataclasses.replace(best, controller=label, trials=list(trials))


def _badness(run: RunRecord) -> tuple[bool, float]:
    loss, diverged = run.curve.late, not math.isfinite(run.final.heldout["loss"])
    return run.outcome != "finished" or diverged, math.inf if loss is None else loss


def run_oracle(trials: Sequence[str], train: Callable[[str], RunRecord], record: Path | None) -> RunRecord:
    """Carry out all trials; :func:`best_in_hindsight` of those done is written to ``record`` after each."""
    done: list[RunRecord] = []
    for controller in trials:
        done.append(train(controller))
        if record is not None:
            best_in_hindsight(done).write(record)
    return best_in_hindsight(done)


def trials_table(result: RunRecord) -> Table:
    """A row for each fixed width that was run, with the loss that :func:`best_in_hindsight` goes by."""
    table = Table("controller", "outcome", "iterations", "seconds", "late held-out loss", "MiB sent per rank")
    for run in result.trials:
        end = run.final
        figures = (
            f"{end.elapsed_seconds:.2f}",
            f"{math.nan if run.curve.late is None else run.curve.late:.4f}",
            f"{end.wire_bytes / 2**20:.2f}",
        )
        table.add_row(run.controller, run.outcome, str(end.iteration), *figures)
    return table
