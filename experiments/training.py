"""What the command ``train`` does, locally and under torchrun."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium

from mqgrad.agents.checkpoint import load_settings
from mqgrad.agents.config import OF_THE_AGENT, TrainConfig, plain
from mqgrad.agents.train import train
from mqgrad.envs import ENV_ID
from mqgrad.envs.settings import make_settings

from .ranks import open_cluster, under_torchrun


def train_policy(config: TrainConfig, *, resume: bool) -> Path | None:
    """Train a policy; returns the model's path, or None on the serving ranks of a torchrun job."""
    if not under_torchrun():
        return train(config, resume=resume)
    env = config.env_arguments()
    settings = make_settings(env.get("preset"), {name: env[name] for name in env if name != "preset"})
    with open_cluster(
        settings.workload, settings.workload_settings or {}, 0, settings.timeout_seconds, settings.clock
    ) as cluster:
        if cluster is None:
            return None
        return train(
            dataclasses.replace(config, env={**config.env, "num_workers": cluster.world_size}),
            resume=resume,
            make_env=lambda: gymnasium.make(ENV_ID, cluster=cluster, **env),
        )


def resume_config(
    output: Path, total_steps: int | None, total_seconds: float | None, given: dict[str, tuple[str, Any]]
) -> TrainConfig:
    """The saved configuration of a run folder; limits and a timeout that are given replace the saved ones.

    Args:
        given: names and values of what else the command line says, by option; all but the timeout must agree with
            what the run was started with, the environment's defaults included.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: an option says otherwise than the run.
    """
    path = output / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{output} holds no run to resume; start one without --resume")
    saved = TrainConfig.load(path)
    started_with = saved.env | plain(load_settings(output) or {})
    started_with |= {name: getattr(saved, name) for name in OF_THE_AGENT}
    for option, (name, value) in given.items():
        own = started_with.get(name)
        if name == "workload_settings":  # of which some may be given
            as_given = saved.env.get(name) or {}  # which a workload may hold otherwise
            own = {setting: as_given.get(setting, (own or {}).get(setting)) for setting in value}
        if name == "timeout_seconds":
            saved = dataclasses.replace(saved, env={**saved.env, name: value})
        elif plain(value) != plain(own):
            raise ValueError(
                f"{option} asks for {value}, but the run in {output} was started with {own}: leave {option} out, "
                "or start another run in another folder"
            )
    if total_steps is None and total_seconds is None:
        return dataclasses.replace(saved, output=output)
    return dataclasses.replace(saved, output=output, total_steps=total_steps, total_seconds=total_seconds)
