"""What the command ``run`` does: one run with a progress bar, TensorBoard logs and a record."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mqgrad.checks import check_positive
from mqgrad.run_folder import check_file, check_writable
from mqgrad.trainers.clusters.distributed import Distributed
from mqgrad.widths import format_width

from .provenance import script_origin
from .runs import RunPoint, RunRecord, RunSpec, run_training

if TYPE_CHECKING:
    from .tensorboard_log import TensorBoardLog


def check_run(budget_seconds: float | None, tensorboard: Path | None, record: Path | None) -> None:
    """Find before any worker starts what would fail after it.

    Raises:
        OSError: a folder does not exist or cannot be written.
        ValueError: a budget that would never be spent.
    """
    if budget_seconds is not None:
        check_positive(budget_seconds=budget_seconds)
    if tensorboard is not None:
        check_writable(tensorboard)
    check_file(record)


def run_once(
    cluster: Distributed, spec: RunSpec, *, tensorboard: Path | None, record: Path | None
) -> RunRecord:
    """One run with a progress bar and, if asked, TensorBoard logs and a JSON file.

    See :func:`check_run` for what can be found out before.
    """
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(progress_with_status())
        bar = progress.add_task(escape(spec.controller or spec.method), total=1.0, status="")
        log = None if tensorboard is None else stack.enter_context(open_log(tensorboard))

        def on_point(point: RunPoint) -> None:
            done = _share_done(point, spec)
            status = f"loss {point.heldout['loss']:.4f}  {format_width(point.bits)} bits"
            progress.update(bar, completed=done, status=status)
            if log is not None:
                log.write(point)

        def on_start(started: RunRecord) -> None:
            started.origin = script_origin("mqgrad")
            if record is not None:  # whatever ends the run; its outcome tells
                stack.callback(lambda: started.write(record) if started.points else None)

        return run_training(cluster, spec, on_start=on_start, on_point=on_point)


def progress_with_status() -> Progress:
    """A bar whose tasks have a ``description`` before it and a ``status`` behind it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns)


def _share_done(point: RunPoint, spec: RunSpec) -> float:
    done = point.iteration / spec.iterations if spec.iterations else 0.0
    if spec.budget_seconds:
        done = max(done, point.elapsed_seconds / spec.budget_seconds)
    return min(done, 1.0)


def open_log(folder: Path) -> "contextlib.closing[TensorBoardLog]":
    """TensorBoard logs that are closed with the block; TensorBoard is imported here, for runs that use it."""
    from .tensorboard_log import TensorBoardLog

    return contextlib.closing(TensorBoardLog(folder))
