"""The command ``mqgrad compare``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .compare_options import (
    available_links,
    data_root_settings,
    oracle_as_fixed_widths,
    parse_budgets,
    parse_workload_settings,
    split_list,
)

if TYPE_CHECKING:
    from .sweep import Sweep
    from .sweep_config import SweepConfig
    from .sweep_result import CellResult

_FIRST_SEED = 101  # seeds that no policy has been trained on unless someone chose to
_START_UP_CORE_SECONDS = 10.0  # of one rank; a guess, only for the estimate before the first run

_SYSTEMS = ("controllers", "compressors", "methods")

_FULL = {
    "controllers": "fixed:1,fixed:2,fixed:3,fixed:4,fixed:6,fixed:8,fixed:16,fixed:32,goodput,dq-sgd,gravac,"
    "adaquantfl,dadaquant,feddq,accordion,linear-ramp,random-ramp",
    "compressors": "fp16,powersgd:rank=1,powersgd:rank=2,powersgd:rank=4,none",
    "methods": "local-sgd",
    "workloads": "digits-cnn,bytes-gpt",
    "optimizers": "sgd,adam",
    "links": "none,100mbit,1gbit,100mbit/1gbit@5s",
    "seeds": 5,
    "hosts": 4,
    "budget_seconds": "digits-cnn=10,bytes-gpt=60",
}
_QUICK = {
    "controllers": "fixed:4,fixed:8,fixed:32,goodput",
    "compressors": "fp16,powersgd:rank=4,none",
    "methods": "",
    "workloads": "digits-cnn",
    "optimizers": "own",
    "links": "100mbit,1gbit",
    "seeds": 3,
    "hosts": 2,
    "budget_seconds": "3",
}


def compare(
    output: Annotated[Path, typer.Option(help="Folder for results and report; continued if it has some.")],
    controllers: Annotated[
        str | None,
        typer.Option(
            help="Separated by commas: policy files, or names as in `mqgrad run`; 'goodput on qsgd' names both."
        ),
    ] = None,
    compressors: Annotated[
        str | None, typer.Option(help="Separated by commas: compressors, each at its own width.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Separated by commas: ways of training other than DDP, e.g. local-sgd."),
    ] = None,
    workloads: Annotated[str | None, typer.Option(help="Separated by commas.")] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(
            help="Separated by commas: values of the workloads' setting 'optimizer', or own: as it is. "
            "Default: own, and without --workloads sgd,adam."
        ),
    ] = None,
    links: Annotated[
        str | None,
        typer.Option(
            help="Separated by commas: 100mbit, 1gbit, ... shaped in the kernel, none: not shaped (all need root), "
            "100mbit/1gbit@10s: in turn, emulated:RATE: paced in the transport. Without root, all are emulated."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs per cell of the grid.", min=1)] = None,
    hosts: Annotated[int | None, typer.Option(help="Ranks of a run, one a host.", min=2)] = None,
    budget_seconds: Annotated[
        str | None,
        typer.Option(help="Training seconds of a run: 10, or by workload: digits-cnn=6,bytes-gpt=15."),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of a run, besides or instead of the seconds.", min=1)
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="[WORKLOAD:]NAME=VALUE",
            help="A setting of one workload or of all; may be repeated.",
        ),
    ] = [],  # noqa: B006 (typer reads the default, nothing changes it)
    data_root: Annotated[
        Path | None, typer.Option(help="Sets data_root of the workloads that read their data from a folder.")
    ] = None,
    time_limit_seconds: Annotated[
        float | None, typer.Option(help="Wall-clock limit of one run; by default ten budgets and 3 minutes.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what has crashed or timed out.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small grid: 42 runs in about 10 minutes on 2 idle cores.")
    ] = False,
) -> None:
    """Compare controllers and compressors on workloads × optimizers × links over several seeds, in real timed runs.

    mqgrad compare --output compared --links 100mbit,1gbit --controllers fixed:2,fixed:8,fixed:32,goodput

    Writes results.jsonl, config.json, report.md and report.html. Ctrl-C keeps every finished run; the same command
    goes on from there. A run that fails is reported with its reason.
    """
    given = {
        "controllers": controllers,
        "compressors": compressors,
        "methods": methods,
        "workloads": workloads,
        "optimizers": optimizers,
        "links": links,
        "seeds": seeds,
        "hosts": hosts,
        "budget_seconds": budget_seconds,
        "iterations": iterations,
    }
    console = Console(highlight=False)
    chosen = with_defaults({name: value for name, value in given.items() if value is not None}, quick=quick)
    settings = [*data_root_settings(data_root, split_list(chosen["workloads"])), *settings]
    config = make_config(chosen, settings, time_limit_seconds, console)
    run_sweep(output, config, retry_failed, console)


def with_defaults(given: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    """What was given, and for the rest the full or the quick form."""
    defaults = {**(_QUICK if quick else _FULL)}
    if "iterations" in given:
        del defaults["budget_seconds"]
    if any(kind in given for kind in _SYSTEMS):  # a list of one kind is the whole list
        defaults |= dict.fromkeys(_SYSTEMS, "")
    if "workloads" in given:
        defaults["optimizers"] = "own"
    return {**defaults, **given}


def make_config(
    chosen: dict[str, Any], settings: list[str], time_limit_seconds: float | None, console: Console
) -> "SweepConfig":
    """The grid, out of what the options say."""
    from .sweep_config import SweepConfig

    names = split_list(chosen["workloads"])
    return SweepConfig(
        systems=oracle_as_fixed_widths([name for kind in _SYSTEMS for name in split_list(chosen[kind])]),
        workloads=tuple(names),
        optimizers=tuple(split_list(chosen["optimizers"])),
        links=tuple(available_links(split_list(chosen["links"]), console)),
        seeds=tuple(range(_FIRST_SEED, _FIRST_SEED + chosen["seeds"])),
        hosts=chosen["hosts"],
        budget_seconds=parse_budgets(chosen.get("budget_seconds"), names),
        iterations=chosen.get("iterations"),
        settings=parse_workload_settings(settings, names),
        time_limit_seconds=time_limit_seconds,
    )


def run_sweep(output: Path, config: "SweepConfig", retry_failed: bool, console: Console) -> None:
    """Carry out what is pending and write the report, of what there is if the sweep is stopped."""
    from .report_pages import write_report
    from .sweep import Sweep

    sweep = Sweep(output, config)
    try:
        run_with_progress(sweep, retry_failed, console)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on: {len(sweep.pending())} runs are left")
        raise
    finally:
        report = write_report(output)
    console.print(f"table:  {report.markdown}\nreport: {report.html}", soft_wrap=True)


def run_with_progress(sweep: "Sweep", retry_failed: bool, console: Console) -> None:
    """Run what is pending; the estimate follows the runs done so far."""
    pending = sweep.pending(retry_failed=retry_failed)
    total = sum(1 for _ in sweep.config.cells())
    budgets = [sweep.config.budget_seconds.get(cell.workload) for cell in pending]
    estimate = ""
    if budgets and None not in budgets:
        start_up = _START_UP_CORE_SECONDS * sweep.config.hosts / (os.cpu_count() or 1)
        minutes = sum(start_up + (budget or 0.0) for budget in budgets) / 60
        estimate = f", about {minutes:.0f} minutes"
    console.print(f"{total} runs, {total - len(pending)} of them done{estimate}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, speed_estimate_period=600.0) as progress:
        bar = progress.add_task("", total=len(pending))

        def on_result(result: "CellResult") -> None:
            progress.advance(bar)
            if not result.finished:
                console.print(f"{result.cell}: {result.outcome}: {result.reason}", markup=False)

        sweep.run(
            retry_failed=retry_failed,
            on_start=lambda cell: progress.update(bar, description=str(cell)),
            on_result=on_result,
        )
