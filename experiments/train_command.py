"""The command ``mqgrad train``."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqgrad.agents.config import DEFAULT_ALGO

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
    print_paths,
    widths_option,
)
from .settings import parse_settings

if TYPE_CHECKING:
    from mqgrad.agents.config import TrainConfig

Rate = Annotated[
    str | None,
    typer.Option(
        "--link-mbit-per-s",
        metavar="RATE[:RATE]",
        help="Emulate a link of this rate by pacing the transport; with two rates, each training episode draws one.",
    ),
]


_SETS = {
    "settings": "workload_settings",
    "data_root": "workload_settings",
    "simulated_compute_ms": "clock",
}  # by another name than the option's
_AUTHORS = {"algo": ("sarsa",), "warm_start": ("auto", "none"), "action_repeat": (1,)}
"""What the preset 'authors' sets, in other words too."""


def train(
    context: typer.Context,
    output: Annotated[
        Path, typer.Argument(parser=folder, help="Run folder: checkpoints, model, TensorBoard logs.")
    ],
    workload: WorkloadName = "digits-cnn",
    settings: WorkloadSettings = [],  # noqa: B006 (typer reads the default, nothing changes it)
    data_root: DataRoot = None,
    num_workers: Workers = 2,
    link_mbit_per_s: Rate = None,
    link_latency_ms: Latency = 0.0,
    simulated_compute_ms: Annotated[
        float | None,
        typer.Option(
            help="Simulate: virtual workers in this process, whose seconds are modelled, of so much computing an "
            "iteration and of sending at --link-mbit-per-s. With --total-steps equal seeds learn equal policies."
        ),
    ] = None,
    interval: Annotated[int | None, typer.Option(help="Training iterations per decision.", min=1)] = None,
    period: Annotated[
        int | None,
        typer.Option(help="Average every so many iterations; above 1, --interval counts such rounds.", min=1),
    ] = None,
    budget_seconds: Annotated[float | None, typer.Option(help="Training seconds per episode.")] = None,
    smoothing_seconds: Annotated[
        float | None,
        typer.Option(
            help="Reward the drop of a moving average of the log-loss with this time constant: with --action-repeat, "
            "as what an action gains then shows late."
        ),
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="Bit widths to choose from, increasing: 1/4+1/2+2+4+8+32.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="'authors': the setting of the MQGrad paper.")] = None,
    algo: Annotated[
        str, typer.Option(help="ppo, dqn, sarsa, or another Stable-Baselines3 class.")
    ] = DEFAULT_ALGO,
    total_steps: Annotated[
        int | None,
        typer.Option(
            help="Stop after this many decisions, of --action-repeat intervals each, at the end of a rollout: PPO's "
            "are 64 decisions, or 32 with --action-repeat."
        ),
    ] = None,
    total_seconds: Annotated[
        float | None,
        typer.Option(
            help="Stop after this much wall-clock time, at the end of a rollout. 600 where no limit is given."
        ),
    ] = None,
    warm_start: Annotated[
        str, typer.Option(help="goodput: begin with a network that imitates the goodput rule; none; or auto.")
    ] = "auto",
    action_repeat: Annotated[
        int, typer.Option(help="Intervals for which the agent keeps to an action while it learns.", min=1)
    ] = 1,
    seed: Seed = 0,
    timeout_seconds: TimeoutSeconds = 60.0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in the folder; a limit that is given replaces those of before."
        ),
    ] = False,
) -> None:
    """Learn a bit-selection policy on a real distributed training loop.

    Starts local worker processes, or uses the ranks of the torchrun job it runs in. Look at the curves with
    `tensorboard --logdir OUTPUT/tensorboard`.
    """
    from mqgrad.agents.config import TrainConfig

    from .ranks import read_once
    from .training import resume_config

    env = {
        "workload": workload,
        "workload_settings": parse_settings(settings, data_root) or None,
        "num_workers": num_workers,
        "link_mbit_per_s": parse_rate(link_mbit_per_s),
        "link_latency_ms": link_latency_ms,
        **simulation(simulated_compute_ms, parse_rate(link_mbit_per_s), link_latency_ms),
        "interval": interval,
        "period": period,
        "budget_seconds": budget_seconds,
        "smoothing_seconds": smoothing_seconds,
        "widths": widths_option(widths),
        "preset": preset,
        "timeout_seconds": timeout_seconds,
    }
    of_agent: dict[str, Any] = {
        "algo": algo.lower(),
        "warm_start": warm_start,
        "action_repeat": action_repeat,
    }
    if resume:
        asked = {**env, **of_agent, "seed": seed}
        config = read_once(
            lambda: resume_config(output, total_steps, total_seconds, given_options(context, asked))
        )
        _train(config, resume=True)
        return
    check_latency(link_mbit_per_s, link_latency_ms)
    if total_steps is None and total_seconds is None and preset != "authors":
        total_seconds = 600.0
    limits = {"total_steps": total_steps, "total_seconds": total_seconds}
    chosen: dict[str, Any] = {**_not_none(limits), "seed": seed, "env": _not_none(env)}
    if preset == "authors":
        check_authors(given_options(context, of_agent))
        config = TrainConfig.authors(output, **chosen)
    else:
        config = TrainConfig(output=output, **of_agent, **chosen)
    _train(config, resume=False)


def _not_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _train(config: "TrainConfig", *, resume: bool) -> None:
    from mqgrad.trainers import WorkerError

    from .ranks import rank
    from .training import train_policy

    try:
        model = train_policy(config, resume=resume)
    except (KeyboardInterrupt, SystemExit, WorkerError):
        if rank() == 0:  # what can be gone on with is in its folder
            print_paths(_how_to_go_on(config.output), stderr=True)
        raise
    if model is not None:
        print_paths(f"model: {model}\nnext:  mqgrad export {quote(str(config.output))} policy.mqg")
        print_paths(f"look:  tensorboard --logdir {quote(str(config.tensorboard_folder))}")


def _how_to_go_on(run: Path) -> str:
    from mqgrad.agents.checkpoint import latest_checkpoint

    from .ranks import under_torchrun

    if latest_checkpoint(run) is None:
        return "stopped before there was anything to save"
    command = "torchrun … -m mqgrad" if under_torchrun() else "mqgrad"
    return f"stopped; to go on: {command} train {quote(str(run))} --resume"


def check_authors(given: dict[str, tuple[str, Any]]) -> None:
    """Raises ValueError, naming both options, if one of them says otherwise than the preset 'authors'."""
    for option, (name, value) in given.items():
        own = _AUTHORS[name]
        if value not in own:
            raise ValueError(
                f"--preset authors sets {option} {own[0]}, and {option} asks for {value}: leave one of them out"
            )


def given_options(context: typer.Context, values: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Names and values whose options are on the command line, by option."""
    return {
        option: (name, values[name])
        for parameter in context.command.params
        if (name := _SETS.get(parameter.name or "", parameter.name)) in values
        and getattr(context.get_parameter_source(parameter.name or ""), "name", "") == "COMMANDLINE"
        for option in parameter.opts[:1]
    }


def simulation(
    compute_ms: float | None, rate: float | tuple[float, float] | None, latency_ms: float
) -> dict[str, Any]:
    """Arguments of the environment by which workers are simulated; none where ``compute_ms`` is None.

    Raises:
        typer.BadParameter: there is no rate, or the workers are those of a torchrun job.
    """
    from .ranks import under_torchrun

    if compute_ms is None:
        return {}
    if rate is None or under_torchrun():
        told = "start it without torchrun" if under_torchrun() else "give the rate too, --link-mbit-per-s"
        raise typer.BadParameter(
            f"workers and their links are simulated: {told}", param_hint="--simulated-compute-ms"
        )
    at = rate if isinstance(rate, float) else rate[1]  # where there are two, each episode draws its own
    clock = {"compute_seconds": compute_ms * 1e-3, "mbit_per_s": at, "latency_ms": latency_ms}
    return {"simulated": True, "clock": clock}


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
