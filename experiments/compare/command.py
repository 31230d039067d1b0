"""The command ``mqgrad compare``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..options import folder
from .grids import GRIDS
from .options import data_root_settings, given_list, make_config, parse_budgets, with_defaults


def compare(
    output: Annotated[
        Path, typer.Option(parser=folder, help="Folder for results and report; continued if it has some.")
    ],
    grid: Annotated[
        str,
        typer.Option(
            help=f"What is compared where other options do not say otherwise: {', '.join(GRIDS)}. quick takes 7 "
            "minutes on 2 idle cores; the others are the full comparison, in about eight and a half hours."
        ),
    ] = "quick",
    controllers: Annotated[
        list[str],
        typer.Option(
            help="Separated by commas, as all such lists, or repeated: policy files, or names as in `mqgrad run`; "
            "'goodput on qsgd' names both. '... with momentum=0' changes a setting of the workload for this system "
            "alone."
        ),
    ] = [],  # noqa: B006 (typer reads the default, nothing changes it; so below)
    compressors: Annotated[
        list[str], typer.Option(help="Separated by commas: compressors, each at its own width.")
    ] = [],  # noqa: B006
    methods: Annotated[
        list[str], typer.Option(help="Separated by commas: other ways of training, e.g. local-sgd.")
    ] = [],  # noqa: B006
    workloads: Annotated[list[str], typer.Option(help="Separated by commas.")] = [],  # noqa: B006
    optimizers: Annotated[
        list[str],
        typer.Option(
            help="Separated by commas: values of the workloads' setting 'optimizer', or own: as it is."
        ),
    ] = [],  # noqa: B006
    links: Annotated[
        list[str],
        typer.Option(
            help="Separated by commas: 100mbit, 1gbit, ... shaped in the kernel, none: not shaped (all need root), "
            "100mbit/1gbit@10s: in turn, emulated:RATE: paced in the transport. Without root, all are emulated."
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[int | None, typer.Option(help="Runs per cell of the grid.", min=1, max=10_000)] = None,
    first_seed: Annotated[
        int | None, typer.Option(help="Of as many; 101 by default.", min=0, max=2**31 - 10_000)
    ] = None,
    hosts: Annotated[int | None, typer.Option(help="Ranks of a run, one a host.", min=2)] = None,
    budget_seconds: Annotated[
        str | None,
        typer.Option(
            help="Training seconds of a run: 10, or by workload and link: digits-cnn=6,@100mbit=15."
        ),
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
    ] = [],  # noqa: B006
    data_root: Annotated[
        Path | None, typer.Option(help="Sets data_root of the workloads that read their data from a folder.")
    ] = None,
    time_limit_seconds: Annotated[
        float | None, typer.Option(help="Wall-clock limit of one run; by default ten budgets and 3 minutes.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what has crashed or timed out.")
    ] = False,
) -> None:
    """Compare controllers and compressors on workloads × optimizers × links over several seeds, in real timed runs.

    mqgrad compare --output compared --links 100mbit,1gbit --controllers fixed:2,fixed:8,goodput

    PyTorch's own DDP (plain-ddp) is always among them.

    Writes results.jsonl, config.json, report.md and report.html. Ctrl-C keeps every finished run; the same command
    goes on from there. A run that fails is reported with its reason.
    """
    lists = {
        "controllers": controllers,
        "compressors": compressors,
        "methods": methods,
        "workloads": workloads,
        "optimizers": optimizers,
        "links": links,
    }
    others: dict[str, Any] = {
        "seeds": seeds,
        "first_seed": first_seed,
        "hosts": hosts,
        "budget_seconds": None if budget_seconds is None else parse_budgets(budget_seconds),
        "iterations": iterations,
    }
    given: dict[str, Any] = {name: given_list(name, texts) for name, texts in lists.items() if texts}
    given |= {name: value for name, value in others.items() if value is not None}
    console = Console(highlight=False)
    chosen = with_defaults(given, grid)
    settings = [*data_root_settings(data_root, chosen.workloads), *chosen.settings, *settings]
    from .progress import run_sweep

    run_sweep(output, make_config(chosen, settings, time_limit_seconds, console), retry_failed, console)
