"""Short training runs on the toy cluster."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mqgrad.agents.config import TrainConfig


def config_for(folder: Path, **settings: object) -> TrainConfig:
    """A run of 120 steps that starts from nothing, unless ``settings`` say otherwise."""
    return TrainConfig(
        **{
            "output": folder,
            "total_steps": 120,
            "progress_bar": False,
            "warm_start": "none",
            "algo": "dqn",
            **settings,
        }
    )  # type: ignore[arg-type]


def tags(folder: Path) -> EventAccumulator:
    """What a run has logged for TensorBoard."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return events
