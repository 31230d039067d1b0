"""The ``mqgrad`` command."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mqgrad.compressors import DEFAULT_COMPRESSOR, compressor_names, make_compressor
from mqgrad.controllers import controller_names, make_controller
from mqgrad.trainers.methods import DEFAULT_METHOD, make_method, method_names
from mqgrad.trainers.workload import workload_names
from mqgrad.widths import Width, parse_width

from . import bench_command, compare_command, netlab_command, run_server_command
from .error_line import error_line
from .settings import parse_settings

if TYPE_CHECKING:
    from mqgrad.agents.config import TrainConfig
    from mqgrad.trainers.link import LinkEmulation

    from .runs import RunRecord

app = typer.Typer(
    help="Choose the bit width of quantized gradients by reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
app.command(context_settings=netlab_command.SETTINGS)(netlab_command.netlab)
app.command()(bench_command.bench)
app.command()(compare_command.compare)
app.command(hidden=True)(run_server_command.serve_runs)

# Options that several commands share.
WorkloadName = Annotated[
    str,
    typer.Option(
        help=f"What is trained: {', '.join(workload_names())}, or your own as package.module:factory."
    ),
]
WorkloadSettings = Annotated[
    list[str], typer.Option("--set", metavar="NAME=VALUE", help="A setting of the workload; may be repeated.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of the workload's data, for those on public data sets; sets data_root."),
]
Workers = Annotated[
    int, typer.Option(help="Worker processes on this machine; ignored under torchrun.", min=1)
]
Rate = Annotated[
    str | None,
    typer.Option(
        "--link-mbit-per-s",
        metavar="RATE[:RATE]",
        help="Emulate a link of this rate by pacing the transport; with two rates, each training episode draws one.",
    ),
]
Latency = Annotated[float, typer.Option(help="Latency of the emulated link per collective, in milliseconds.")]
_SETS = {
    "settings": "workload_settings",
    "data_root": "workload_settings",
}  # by another name than the option's
Seed = Annotated[int, typer.Option(help="Seed of weights, data order, rounding and agent.")]


@app.command()
def train(
    context: typer.Context,
    output: Annotated[Path, typer.Argument(help="Run folder: checkpoints, model, TensorBoard logs.")],
    workload: WorkloadName = "digits-cnn",
    settings: WorkloadSettings = [],  # noqa: B006 (typer reads the default, nothing changes it)
    data_root: DataRoot = None,
    num_workers: Workers = 2,
    link_mbit_per_s: Rate = None,
    link_latency_ms: Latency = 0.0,
    interval: Annotated[int | None, typer.Option(help="Training iterations per decision.", min=1)] = None,
    budget_seconds: Annotated[float | None, typer.Option(help="Training seconds per episode.")] = None,
    widths: Annotated[
        str | None, typer.Option(help="Bit widths to choose from, increasing: 1/4+1/2+2+4+8+32.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="'authors': the setting of the MQGrad paper.")] = None,
    algo: Annotated[str, typer.Option(help="ppo, dqn, sarsa, or another Stable-Baselines3 class.")] = "ppo",
    total_steps: Annotated[int | None, typer.Option(help="Stop after this many decisions.")] = None,
    total_seconds: Annotated[float | None, typer.Option(help="Stop after this much wall-clock time.")] = None,
    warm_start: Annotated[
        str, typer.Option(help="goodput: begin with a network that imitates the goodput rule; none; or auto.")
    ] = "auto",
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
) -> None:
    """Learn a bit-selection policy on a real distributed training loop.

    Starts local worker processes, or uses the ranks of the torchrun job it runs in. Look at the curves with
    `tensorboard --logdir OUTPUT/tensorboard`.
    """
    from mqgrad.agents.config import TrainConfig

    from .training import read_once, resume_config

    env = {
        "workload": workload,
        "workload_settings": parse_settings(settings, data_root) or None,
        "num_workers": num_workers,
        "link_mbit_per_s": parse_rate(link_mbit_per_s),
        "link_latency_ms": link_latency_ms,
        "interval": interval,
        "budget_seconds": budget_seconds,
        "widths": parse_widths(widths),
        "preset": preset,
    }
    if resume:
        asked = {**env, "algo": algo, "warm_start": warm_start, "seed": seed}
        config = read_once(
            lambda: resume_config(output, total_steps, total_seconds, given_options(context, asked))
        )
        _train(config, resume=True)
        return
    if total_steps is None and total_seconds is None and preset != "authors":
        total_seconds = 600.0
    chosen: dict[str, Any] = {
        "total_steps": total_steps,
        "total_seconds": total_seconds,
        "seed": seed,
        "env": {name: value for name, value in env.items() if value is not None},
    }
    if preset == "authors":
        chosen = {name: value for name, value in chosen.items() if value is not None}
        config = TrainConfig.authors(output, **chosen)
    else:
        config = TrainConfig(output=output, algo=algo, warm_start=warm_start, **chosen)
    _train(config, resume=False)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder of `mqgrad train`, or its model.zip.")],
    policy: Annotated[Path, typer.Argument(help="File to write, e.g. policy.mqg.")],
) -> None:
    """Freeze a trained policy into one file without code, for deployment.

    Loading a model.zip runs code from it (it is Stable-Baselines3's format): export only your own. The file that is
    written holds tensors and JSON and is safe to share.
    """
    from mqgrad.agents.export import export as export_model

    frozen = export_model(run / "model.zip" if run.is_dir() else run, policy)
    console.print(f"{policy}: {frozen.provenance['algorithm']} after {frozen.provenance['steps']} decisions")


@app.command()
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
        str, typer.Option(help=f"How gradients travel: one of {', '.join(compressor_names())}.")
    ] = DEFAULT_COMPRESSOR,
    method: Annotated[
        str, typer.Option(help=f"How the replicas train together: one of {', '.join(method_names())}.")
    ] = DEFAULT_METHOD,
    iterations: Annotated[int | None, typer.Option(help="Training iterations.", min=1)] = None,
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
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs of the run.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write every point of the run to this JSON file.")
    ] = None,
) -> None:
    """Train once with DDP under a controller, and report loss, time, bits and bytes."""
    from .oracle import oracle_trials, run_oracle, trials_table
    from .runs import default_controller
    from .training import check_run, open_cluster, read_once, run_once

    if iterations is None and budget_seconds is None:
        iterations = 200
    make_method(method)  # mistakes are found before any worker starts
    make_compressor(compressor)
    link = parse_link(link_mbit_per_s, link_latency_ms)
    read_once(lambda: check_run(budget_seconds, tensorboard, record))
    trials = oracle_trials(controller, compressor)
    if trials and method != DEFAULT_METHOD:
        raise ValueError(f"method {method!r} has no width for the oracle to choose; leave --method out")
    if method == DEFAULT_METHOD and not trials:
        controller = chosen = controller or default_controller(compressor)
        read_once(lambda: make_controller(chosen).initial_bits)
    with open_cluster(workload, parse_settings(settings, data_root), num_workers) as cluster:
        if cluster is None:
            return
        world_size = cluster.world_size

        def train_once(name: str | None, logs: Path | None, file: Path | None) -> "RunRecord":
            return run_once(
                cluster,
                name,
                seed,
                compressor=compressor,
                method=method,
                link=link,
                iterations=iterations,
                budget_seconds=budget_seconds,
                tensorboard=logs,
                record=file,
            )

        if trials:
            result = run_oracle(
                trials, lambda name: train_once(name, tensorboard and tensorboard / name, None), record
            )
            console.print(trials_table(result))
        else:
            result = train_once(controller, tensorboard, record)
    on_link = f", {link}" if link else ""
    console.print(_run_table(result, f"{workload}, {world_size} workers{on_link}, seed {seed}"))


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for everything the demo writes.")] = Path(
        "demo-output"
    ),
    train_seconds: Annotated[float, typer.Option(help="Wall-clock time for learning the policy.")] = 150.0,
) -> None:
    """The whole job in about five minutes: learn a policy, freeze it, compare it on runs it has not seen."""
    from .demo import run_demo

    run_demo(output, train_seconds, console)


def _run_table(result: "RunRecord", title: str) -> Table:
    """What one run was and what came of it; figures that do not apply are left out."""
    table = Table(title=title, show_header=False)
    rows = {
        "method": result.method,
        "compressor": result.compressor if result.method == DEFAULT_METHOD else "",
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


def _train(config: "TrainConfig", *, resume: bool) -> None:
    from .training import train_policy

    model = train_policy(config, resume=resume)
    if model is not None:
        console.print(f"model: {model}\nnext:  mqgrad export {config.output} policy.mqg")
        console.print(f"look:  tensorboard --logdir {config.tensorboard_folder}")


def given_options(context: typer.Context, values: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Names and values whose options are on the command line, by option."""
    return {
        option: (name, values[name])
        for parameter in context.command.params
        if (name := _SETS.get(parameter.name or "", parameter.name)) in values
        and getattr(context.get_parameter_source(parameter.name or ""), "name", "") == "COMMANDLINE"
        for option in parameter.opts[:1]
    }


def parse_rate(text: str | None) -> float | tuple[float, float] | None:
    """``"100"`` → 100.0, ``"10:1000"`` → (10.0, 1000.0)."""
    if text is None:
        return None
    try:
        rates = tuple(float(part) for part in text.split(":"))
    except ValueError:
        rates = ()
    if len(rates) not in (1, 2) or min(rates) <= 0:
        raise typer.BadParameter(
            f"{text!r} is not RATE or LOW:HIGH in Mbit/s", param_hint="--link-mbit-per-s"
        )
    return rates[0] if len(rates) == 1 else (rates[0], rates[1])


def parse_link(text: str | None, latency_ms: float) -> "LinkEmulation | None":
    """The emulated link of a run, if one is asked for."""
    from mqgrad.trainers.link import parse_emulation

    return None if text is None else parse_emulation(text, latency_ms)


def parse_widths(text: str | None) -> tuple[Width, ...] | None:
    """``"1/4+2+32"`` → (0.25, 2, 32)."""
    try:
        return None if text is None else tuple(parse_width(part) for part in text.split("+"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--widths") from None


def main() -> None:
    """Entry point: a user's mistake ends in one line and exit code 2, a stopped run in 130."""
    try:
        app()
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        if os.environ.get("MQGRAD_TRACEBACK"):
            raise
        Console(stderr=True).print(
            f"[red]error:[/red] {escape(error_line(error))}", highlight=False, soft_wrap=True
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        raise SystemExit(130) from None
