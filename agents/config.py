"""What one training of a policy is made of: saved in the run folder, so that it can be resumed and traced."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mqgrad.checks import check_choice, check_count, check_positive, plain_number
from mqgrad.files import replace_file
from mqgrad.saved_state import restored_settings
from mqgrad.trainers.clusters.clock import ModelClock
from mqgrad.trainers.clusters.cluster import check_run_seed

DEFAULT_ALGO = "ppo"
WARM_STARTS = ("auto", "goodput", "none")
OF_THE_AGENT = ("algo", "seed", "hyperparameters", "warm_start", "time_price", "action_repeat")
"""Settings with which a run goes on as it began; its environment is compared as it is, not as it was asked for."""


@dataclasses.dataclass(kw_only=True, slots=True)
class TrainConfig:
    """Settings of :func:`mqgrad.agents.train.train`.

    Raises:
        ValueError: for a value outside its range, naming it.
    """

    output: Path
    """Run folder: configuration, checkpoints, final model, TensorBoard logs."""
    algo: str = DEFAULT_ALGO
    """``ppo``, ``dqn``, ``sarsa``, or another Stable-Baselines3 class that takes discrete actions, e.g. ``a2c``."""
    total_steps: int | None = None
    """Stop after this many decisions (environment steps, or ``action_repeat`` times as many), earlier runs of the
    same folder included. On-policy algorithms such as PPO finish the rollout that is under way."""
    total_seconds: float | None = None
    """Stop after this many seconds of wall-clock time, earlier runs of the same folder included; counted from the
    first decision, when the workers have started. On-policy algorithms finish the rollout that is under way. (After
    a signal they do not: what there is of it is lost, as where a run is resumed from a checkpoint within one.)"""
    seed: int = 0
    """Seed of the agent and of the first episode; equal seeds give equal runs where time is modelled."""
    env: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of ``mqgrad/BitWidth-v0``. ``clock`` may be a dict of ``ModelClock`` arguments."""
    checkpoint_every: int = 100
    """Environment steps between two checkpoints."""
    hyperparameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Overrides of the preset, passed to the constructor of the algorithm."""
    time_price: bool = True
    """Shape the reward by the price of the seconds a decision took; see :mod:`mqgrad.agents.time_price`."""
    action_repeat: int = 1
    """Intervals for which the agent keeps to an action while it learns, see
    :class:`mqgrad.agents.wrappers.ActionRepeat`; above 1 for on-policy algorithms and ``absolute`` actions only. A
    first Ctrl-C waits for all of them."""
    warm_start: str = "auto"
    """``goodput``: begin with a network that imitates the goodput rule, see :mod:`mqgrad.agents.warm_start`;
    ``none``: with a random one; ``auto``: ``goodput`` for dqn, ppo and a2c with the ``full`` observation and
    ``absolute`` actions."""
    tensorboard: Path | None = None
    """Folder of TensorBoard logs; ``None`` for ``output/tensorboard``."""
    progress_bar: bool = True
    """Show progress on stderr."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, plain_number(getattr(self, field.name)))
        self.output = Path(self.output)
        self.tensorboard = Path(self.tensorboard) if self.tensorboard is not None else None
        self.algo = self.algo.lower()
        if self.total_steps is None and self.total_seconds is None:
            raise ValueError("nothing says when to stop: give total_steps, total_seconds or both")
        if self.total_steps is not None:
            check_count(total_steps=self.total_steps)
        if self.total_seconds is not None:
            check_positive(total_seconds=self.total_seconds)
        check_count(checkpoint_every=self.checkpoint_every, action_repeat=self.action_repeat)
        check_run_seed(self.seed)
        check_choice("warm_start", self.warm_start, WARM_STARTS)

    @property
    def tensorboard_folder(self) -> Path:
        """Where TensorBoard logs go."""
        return self.tensorboard or self.output / "tensorboard"

    def env_arguments(self) -> dict[str, Any]:
        """``env`` as the environment takes it."""
        return with_clock(self.env)

    @classmethod
    def authors(cls, output: Path, **settings: Any) -> "TrainConfig":
        """MQGrad's own setting (Cui et al., ICTIR 2018): SARSA, 400 decisions in one run of 2000 iterations."""
        env = {"preset": "authors", **settings.pop("env", {})}
        return cls(**{"output": output, "algo": "sarsa", "total_steps": 400, "env": env, **settings})

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, for JSON and for the provenance of an exported policy."""
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def to_json(self) -> str:
        """What a run folder holds.

        Raises:
            ValueError: naming the first setting that JSON cannot hold, as infinity, or a workload given as an object.
        """
        settings = self.to_dict()
        env = settings.pop("env")
        _check_savable(settings, "objects cannot be saved")
        _check_savable(env, "objects go through train(..., make_env=...)")
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def save(self, path: Path) -> None:
        """Write as JSON; see :meth:`to_json`."""
        replace_file(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> "TrainConfig":
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: the file is damaged, or not such a configuration, or has settings that this version lacks.
        """
        try:
            return restored_settings(cls, json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is no configuration of a training ({error})") from error


def with_clock(arguments: dict[str, Any]) -> dict[str, Any]:
    """The environment's arguments as JSON holds them, with the clock made a ``ModelClock`` again."""
    clock = arguments.get("clock")
    return {**arguments, "clock": ModelClock(**clock)} if isinstance(clock, dict) else dict(arguments)


def plain(value: Any) -> Any:
    """Paths, dataclasses, tuples and NumPy's numbers within ``value`` turned into what JSON has; anything else as it
    is."""
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain_number(value)


def _check_savable(settings: Mapping[str, Any], remedy: str) -> None:
    for name, value in settings.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}={value!r} cannot be saved with the run ({error}); numbers have to be finite, and {remedy}"
            ) from error
