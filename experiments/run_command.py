"""The command ``mqgrad run``."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from mqgrad.compatibility import check_compatible
from mqgrad.compressors import DEFAULT_COMPRESSOR, compressor_names, make_compressor
from mqgrad.controllers import controller_names, make_controller
from mqgrad.trainers.clusters.method_checks import check_method
from mqgrad.trainers.methods import DEFAULT_METHOD, has_width, make_method, method_names

from .options import (
    DataRoot,
    Latency,
    Seed,
    TimeoutSeconds,
    Workers,
    WorkloadName,
    WorkloadSettings,
    check_latency,
    folder,
)
from .settings import parse_settings

if TYPE_CHECKING:
    from .runs import RunRecord


def run(
    workload: WorkloadName = "digits-cnn",
    settings: WorkloadSettings = [],  # noqa: B006
    data_root: DataRoot = None,
    num_workers: Workers = 2,
    controller: Annotated[
        str | None,
        typer.Option(
            help=f"A policy file, or one of: {', '.join(controller_names())}; e.g. fixed:4. "
            "oracle, or oracle:widths=2+4+8: every fixed width in turn, and the best in hindsight. "
            "Default: fixed:4, or the compressor's only width."
        ),
    ] = None,
    compressor: Annotated[
        str | None,
        typer.Option(
            help=f"How gradients travel: one of {', '.join(compressor_names())}. Default: {DEFAULT_COMPRESSOR}."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"How the replicas train together: one of {', '.join(method_names())}.")
    ] = DEFAULT_METHOD,
    iterations: Annotated[
        int | None, typer.Option(help="Training iterations; 200 where no seconds are given.", min=1)
    ] = None,
    budget_seconds: Annotated[
        float | None, typer.Option(help="Stop after this many training seconds.")
    ] = None,
    link_mbit_per_s: Annotated[
        str | None,
        typer.Option(
            metavar="RATE[/RATE@SECONDS]",
            help="Emulate a link of this rate by pacing the transport; of several, in turn for these seconds.",
        ),
    ] = None,
    link_latency_ms: Latency = 0.0,
    seed: Seed = 0,
    timeout_seconds: TimeoutSeconds = 60.0,
    tensorboard: Annotated[
        Path | None, typer.Option(parser=folder, help="Folder for TensorBoard logs of the run.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write every point of the run to this JSON file.")
    ] = None,
) -> None:
    """Train once with DDP under a controller, and report loss, time, bits and bytes."""
    from .oracle import oracle_trials, run_oracle, trials_table
    from .ranks import open_cluster, read_once, world_size
    from .recorded_run import check_run, run_once
    from .runs import RunSpec

    if iterations is None and budget_seconds is None:
        iterations = 200
    check_latency(link_mbit_per_s, link_latency_ms)
    compressor = _checked_compressor(compressor, method)  # mistakes are found before any worker starts
    read_once(lambda: check_run(budget_seconds, tensorboard, record))
    trials = oracle_trials(controller, compressor)
    spec = RunSpec(
        seed=seed,
        controller=_checked_controller(
            controller, compressor, method, budget_seconds, is_oracle=bool(trials)
        ),
        compressor=compressor,
        method=method,
        link=link_mbit_per_s,
        link_latency_ms=link_latency_ms,
        iterations=iterations,
        budget_seconds=budget_seconds,
    )
    link = spec.emulation()
    check_method(
        method,
        make_method(method),
        world_size=world_size(num_workers),
        controller=spec.controller,
        clock=None,
        link=link,
    )
    with open_cluster(workload, parse_settings(settings, data_root), num_workers, timeout_seconds) as cluster:
        if cluster is None:
            return
        title = f"{workload}, {cluster.world_size} workers{f', {link}' if link else ''}, seed {seed}"
        if trials:
            result = run_oracle(
                trials,
                lambda name: run_once(
                    cluster,
                    dataclasses.replace(spec, controller=name),
                    tensorboard=tensorboard and tensorboard / name,
                    record=None,
                ),
                record,
            )
            Console().print(trials_table(result))
        else:
            result = run_once(cluster, spec, tensorboard=tensorboard, record=record)
    Console(markup=False).print(_run_table(result, title))  # a path may have brackets


def _checked_compressor(compressor: str | None, method: str) -> str:
    """The compressor of a run, as it was named or the default."""
    make_method(method)
    if compressor is not None and not has_width(method):
        raise ValueError(
            f"--method {method} sends in a way of its own, and --compressor {compressor} would change nothing: "
            "leave one of them out"
        )
    compressor = DEFAULT_COMPRESSOR if compressor is None else compressor
    make_compressor(compressor)
    return compressor


def _checked_controller(
    controller: str | None, compressor: str, method: str, budget_seconds: float | None, *, is_oracle: bool
) -> str | None:
    """The controller of a run: as it was named, or the default where there is a width and no oracle to choose it."""
    from .ranks import read_once
    from .runs import default_controller

    if is_oracle and not has_width(method):
        raise ValueError(f"method {method!r} has no width for the oracle to choose; leave --method out")
    if is_oracle or not has_width(method):
        return controller
    chosen = default_controller(compressor) if controller is None else controller
    read_once(lambda: check_compatible(make_controller(chosen, budget_seconds), make_compressor(compressor)))
    return chosen


def _run_table(result: "RunRecord", title: str) -> Table:
    """What one run was and what came of it; figures that do not apply are left out."""
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    rows = {
        "method": result.method,
        "compressor": result.compressor if has_width(result.method) else "",
        "controller": result.controller,
        "outcome": result.outcome,
        "iterations": result.final.iteration,
        "seconds": f"{result.final.elapsed_seconds:.2f}",
        "held-out loss": f"{result.final.heldout['loss']:.4f}",
        "mean bits": f"{result.mean_bits:.3g}",
        "MiB sent per rank": f"{result.final.wire_bytes / 2**20:.2f}",
        "seconds of all trials": f"{result.trial_seconds:.2f}" if result.trials else "",
    }
    rows |= {name.replace("_", " "): f"{value:.4g}" for name, value in result.final.figures.items()}
    for name, value in rows.items():
        if value != "":
            table.add_row(name, str(value))
    return table
