"""A sweep from the command line: progress, an estimate of the time that is left, and the report."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..netlab.iproute import NetLabError
from ..provenance import available_cores
from ..reports.pages import write_report
from ..sweep.axes import Run
from ..sweep.config import SweepConfig
from ..sweep.folder import Sweep, load_results, open_sweep
from ..sweep.result import FAILED, RunResult
from ..sweep.runner import server_options

_START_UP_CORE_SECONDS = 6.0  # of one rank; guesses, only for the estimate before the first run
_LONGER = ", and --time-limit-seconds gives a run more time"
_BESIDES_TRAINING = 0.15  # of a run's budget: evaluations


def run_sweep(output: Path, config: SweepConfig, retry_failed: bool, console: Console) -> None:
    """Carry out what is pending and write the report, of what there is if the sweep is stopped.

    Raises:
        RuntimeError: runs have failed; the report tells of the others.
    """
    stopped: BaseException | None = None
    with open_sweep(output, config) as sweep:
        try:
            run_with_progress(sweep, retry_failed, console)
        except (KeyboardInterrupt, SystemExit, NetLabError) as error:
            left = len(sweep.pending(retry_failed=retry_failed))
            console.print(f"stopped; the same command goes on: {left} runs are left")
            stopped = error
        except (ValueError, OSError) as error:  # as where a policy file was changed or is gone
            stopped = error
        report = write_report(output)
    if stopped is not None:
        raise stopped
    console.print(f"table:  {report.markdown}\nreport: {report.html}", soft_wrap=True, markup=False)
    check_outcomes(load_results(output), "the same command" if retry_failed else "--retry-failed")


def check_outcomes(results: Sequence[RunResult], remedy: str) -> None:
    """Raise ``RuntimeError`` if runs have failed: whoever started the sweep from a script has to learn of it."""
    failed = [result for result in results if result.outcome in FAILED]
    if failed:
        more_time = any(result.outcome == "timed out" for result in failed)
        raise RuntimeError(
            f"{len(failed)} of {len(results)} runs crashed or timed out, the first for this reason: "
            f"{failed[0].reason}; {remedy} runs them again{_LONGER if more_time else ''}"
        )


def run_with_progress(sweep: Sweep, retry_failed: bool, console: Console) -> None:
    """Run what is pending; the estimate follows the runs done so far."""
    pending = sweep.pending(retry_failed=retry_failed)
    total = sum(1 for _ in sweep.config.runs())
    seconds = estimate_seconds(sweep.config, pending)
    minutes = round((seconds or 0.0) / 60)
    estimate = f", about {minutes} minute{'s' * (minutes > 1)}" if minutes else ""
    done = total - len(pending)
    console.print(f"{total} runs, {done} of them done{estimate}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, speed_estimate_period=600.0) as progress:
        bar = progress.add_task("", total=total, completed=done)

        def on_result(result: RunResult) -> None:
            progress.advance(bar)
            if not result.finished:
                console.print(f"{result.run}: {result.outcome}: {result.reason}", markup=False)

        sweep.run(
            retry_failed=retry_failed,
            on_start=lambda run: progress.update(bar, description=escape(str(run))),
            on_result=on_result,
        )


def estimate_seconds(config: SweepConfig, runs: Sequence[Run]) -> float | None:
    """How long these runs will take on an idle machine; None where no budget bounds them."""
    budgets = [config.budget_of(run.workload, run.link) for run in runs]
    if None in budgets:
        return None
    served = [(run.link, server_options(run, config)) for run in runs]
    starts = sum(1 for number, each in enumerate(served) if number == 0 or each != served[number - 1])
    start_up = _START_UP_CORE_SECONDS * config.hosts / available_cores()
    return starts * start_up + sum((1 + _BESIDES_TRAINING) * (budget or 0.0) for budget in budgets)
