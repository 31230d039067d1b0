"""The command ``mqgrad compare``."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mqgrad.trainers.workload import workload_settings

if TYPE_CHECKING:
    from .sweep import Sweep
    from .sweep_cell import CellResult

_FIRST_SEED = 101  # seeds that no policy has been trained on unless someone chose to
_START_UP_CORE_SECONDS = 10.0  # of one rank; a guess, only for the estimate before the first run

_FULL = {
    "controllers": "fixed:2,fixed:4,fixed:8,fixed:16,fixed:32,goodput,dq-sgd",
    "workloads": "digits-cnn,bytes-gpt",
    "links": "none,100mbit,1gbit",
    "seeds": 5,
    "hosts": 4,
    "budget_seconds": "digits-cnn=10,bytes-gpt=60",
}
_QUICK = {
    "controllers": "fixed:2,fixed:4,fixed:8,fixed:32,goodput",
    "workloads": "digits-cnn",
    "links": "100mbit,1gbit",
    "seeds": 3,
    "hosts": 2,
    "budget_seconds": "4",
}


def compare(
    output: Annotated[Path, typer.Option(help="Folder for results and report; continued if it has some.")],
    controllers: Annotated[
        str | None, typer.Option(help="Separated by commas: policy files, or names as in `mqgrad run`.")
    ] = None,
    workloads: Annotated[str | None, typer.Option(help="Separated by commas.")] = None,
    links: Annotated[
        str | None,
        typer.Option(
            help="Separated by commas: 100mbit, 1gbit, ... shaped in the kernel, none: not shaped (all need root), "
            "emulated:RATE: paced in the transport. Without root, all are emulated."
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
        bool, typer.Option("--quick", help="A small grid: 30 runs in about 6 minutes on 2 cores.")
    ] = False,
) -> None:
    """Compare controllers × workloads × links over several seeds, each run real and timed by the clock.

    mqgrad compare --output compared --links 100mbit,1gbit --controllers fixed:2,fixed:8,fixed:32,goodput

    Writes results.jsonl, config.json, report.md and report.html. Ctrl-C keeps every finished run; the same command
    goes on from there. A run that fails is reported with its reason.
    """
    from .report_pages import write_report
    from .sweep import Sweep
    from .sweep_config import SweepConfig

    given = {
        "controllers": controllers,
        "workloads": workloads,
        "links": links,
        "seeds": seeds,
        "hosts": hosts,
        "budget_seconds": budget_seconds,
    }
    chosen: dict[str, Any] = {**(_QUICK if quick else _FULL)}
    if iterations is not None and budget_seconds is None:
        del chosen["budget_seconds"]
    chosen.update({name: value for name, value in given.items() if value is not None})
    console = Console(highlight=False)
    names = split_list(chosen["workloads"])
    config = SweepConfig(
        controllers=tuple(split_list(chosen["controllers"])),
        workloads=tuple(names),
        links=tuple(available_links(split_list(chosen["links"]), console)),
        seeds=tuple(range(_FIRST_SEED, _FIRST_SEED + chosen["seeds"])),
        hosts=chosen["hosts"],
        budget_seconds=parse_budgets(chosen.get("budget_seconds"), names),
        iterations=iterations,
        settings=parse_workload_settings([*data_root_settings(data_root, names), *settings], names),
        time_limit_seconds=time_limit_seconds,
    )
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


def available_links(names: list[str], console: Console) -> list[str]:
    """The links, emulated where a lab cannot be built here, and a notice of that."""
    from .iproute import NetLabError, check_available
    from .sweep_config import Link

    links = [Link.parse(name) for name in names]
    if all(link.emulated for link in links):
        return names
    try:
        check_available()
    except NetLabError as error:
        console.print(f"[yellow]all links are emulated in the transport:[/yellow] {error}")
        return list(dict.fromkeys(link.emulation().name for link in links))
    return names


def split_list(text: str) -> list[str]:
    """``"fixed:2,linear-ramp:start=2,end=8"`` → ``["fixed:2", "linear-ramp:start=2,end=8"]``.

    A part that is only ``name=value`` is a further argument of the controller before it.
    """
    items: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if items and re.fullmatch(r"\w+=[^:]*", part):
            items[-1] += f",{part}"
        else:
            items.append(part)
    return items


def parse_budgets(text: str | None, workloads: list[str]) -> dict[str, float]:
    """``"6"`` → 6 seconds for every workload; ``"digits-cnn=6,bytes-gpt=15"`` → each its own."""
    if text is None:
        return {}
    try:
        if "=" not in text:
            return dict.fromkeys(workloads, float(text))
        pairs = (part.strip().rpartition("=") for part in text.split(","))
        return {name: float(value) for name, _, value in pairs}
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not SECONDS or WORKLOAD=SECONDS,...", param_hint="--budget-seconds"
        ) from None


def data_root_settings(data_root: Path | None, workloads: list[str]) -> list[str]:
    """The folder as items of ``--set``, which ones that follow override."""
    if data_root is None:
        return []
    return [f"{w}:data_root={data_root.absolute()}" for w in workloads if "data_root" in workload_settings(w)]


def parse_workload_settings(items: list[str], workloads: list[str]) -> dict[str, dict[str, Any]]:
    """``["bytes-gpt:width=64", "batch_size=8"]`` → settings by workload."""
    from .cli import parse_settings

    settings: dict[str, dict[str, Any]] = {}
    for item in items:
        name, separator, value = item.partition("=")
        workload, _, name = name.rpartition(":")
        for each in [workload] if workload else workloads:
            settings.setdefault(each, {}).update(parse_settings([f"{name}{separator}{value}"]))
    return settings
