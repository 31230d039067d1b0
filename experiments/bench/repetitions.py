"""How often a measurement is repeated, so that a large model on a slow link does not take hours; and its progress."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mqgrad.widths import Width, format_width

Variant: TypeAlias = Width | None
"""A width in bits through the hook, or None: DDP without a hook."""

_V = TypeVar("_V", bound=Variant)

LEAST_ROUNDS = 2
"""That count, however long they take: of one nobody knows by how much it would differ from another."""


def rounds_within(seconds: float, name: str, variants: Sequence[_V], *, most: int) -> Iterator[Iterator[_V]]:
    """The rounds of a measurement, each an iterator over the variants, whose turn it is; every rank iterates.

    The first round warms up. At least ``LEAST_ROUNDS`` and at most ``most`` follow, as many as end within the seconds
    if each takes as long as the mean of those before. Rank 0 shows on its standard error how far they are.
    """
    start = time.perf_counter()
    with _progress_bar() as progress:
        bar = progress.add_task(name, total=(most + 1) * len(variants))
        for number in range(most + 1):
            description = f"{name}: round {number} of at most {most}" if number else f"{name}: warming up"
            _tell_pipes(description, progress.console)
            yield _turns(variants, description, progress, bar)
            expected = (time.perf_counter() - start) * (number + 2) / (number + 1)
            if number >= LEAST_ROUNDS and from_rank_0(expected > seconds):
                return


def iterations_within(
    seconds: float, *, iteration_seconds: float, turns: int, uncounted: int, most: int
) -> int:
    """How many iterations each turn of a round counts: of 1 to ``most``, with which the least rounds end in time.

    Args:
        seconds: for all rounds.
        iteration_seconds: of one iteration; rank 0's are taken, so that ranks agree.
        turns: of one round.
        uncounted: iterations at the start of a turn that do not count.
        most: what is not exceeded, however fast iterations are.
    """
    per_turn = seconds / (from_rank_0(iteration_seconds) * turns * (1 + LEAST_ROUNDS))
    return max(1, min(most, int(per_turn) - uncounted))


def from_rank_0(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def _turns(variants: Sequence[_V], description: str, progress: Progress, bar: TaskID) -> Iterator[_V]:
    for bits in variants:
        variant = "plain DDP" if bits is None else f"{format_width(bits)} bits"
        progress.update(bar, description=f"{description}, {variant}", refresh=True)
        yield bits
        progress.advance(bar)


def _progress_bar() -> Progress:
    """Drawn between turns only: a thread that draws would take the time of what is measured."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, quiet=dist.get_rank() != 0)
    return Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    )


def _tell_pipes(text: str, console: Console) -> None:
    """For logs, which show no bar."""
    if not console.is_terminal:
        console.print(text, highlight=False)
