"""Train a bit-selection policy: one run folder from the first decision to the final model."""

import contextlib
import os
import warnings
from pathlib import Path
from types import FrameType

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv
from torch.utils.tensorboard import SummaryWriter

from mqgrad.envs import BitWidthSettings
from mqgrad.policies.policy_file import MAX_FILE_BYTES
from mqgrad.run_folder import check_writable, only_process_in
from mqgrad.trainers.signals import signals_to, stopped_by
from mqgrad.trainers.threads import torch_threads

from .build import MakeEnv, algorithm_class, build_env, build_model, check_agent
from .callbacks import (
    CheckpointCallback,
    Limits,
    LimitsCallback,
    MetricsCallback,
    ProgressCallback,
    RepriceCallback,
)
from .checkpoint import (
    check_settings,
    find_time_price,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_model,
    save_settings,
)
from .config import OF_THE_AGENT, TrainConfig, plain
from .network_layers import network_layers
from .origin import save_origin, warn_if_changed

ENDLESS = 10**9  # steps; a run without a limit of steps is ended by its limit of time


class Interruption:
    """Remembers that the run was asked to stop; a second request stops it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal waits for the decision under way, the second does not."""
        if self.signal is not None:
            raise stopped_by(number)
        self.signal = number
        # Not by print, which what the signal came upon may be within. Who started us may read no more.
        with contextlib.suppress(OSError):
            os.write(2, b"\nstopping after the decision under way; once more stops at once\n")

    def reraise(self) -> None:
        """Tell the caller that the run was cut short, as the signal would have without us."""
        if self.signal is not None:
            raise stopped_by(self.signal)


def train(config: TrainConfig, *, resume: bool = False, make_env: MakeEnv | None = None) -> Path:
    """Train a policy and return the path of the saved model, ``output/model.zip``.

    The run folder holds ``config.json``, ``environment.json`` (its settings as they were), ``origin.json`` (versions,
    revision, and what the workload's module was), ``checkpoints/step_N``, TensorBoard logs and, at the end,
    ``model.zip``. Whatever stops the run (its limits, Ctrl-C, SIGTERM, an error), a checkpoint is written, if any
    decision was made, and the environment's processes are ended; after a signal, the KeyboardInterrupt or SystemExit
    goes on to the caller.

    Args:
        config: the settings; ``total_steps`` and ``total_seconds`` count from the start of the first run.
        resume: continue from the last checkpoint of ``config.output``: steps, replay buffer, schedules,
            random states and TensorBoard curves go on. In place of the episode that was cut off the next one begins.
        make_env: builds the environment in place of ``gymnasium.make("mqgrad/BitWidth-v0", **config.env)``,
            e.g. around a cluster of one's own.

    Raises:
        OSError: if the run or TensorBoard folder cannot be written, or has no locks; no worker was started then.
        ValueError: for an algorithm that is unknown or does not fit; for settings that the environment refuses,
            neither of which leaves a folder; for wrappers of ``make_env``'s that change observations or actions,
            which an exported policy would lack; for a run to resume that had another algorithm, seed, environment or
            other settings of the agent, is damaged or of another format; if another process trains in the folder.
        FileExistsError: if the folder already holds a run and ``resume`` is not set.
        FileNotFoundError: if ``resume`` is set and there is no checkpoint.
    """
    check_agent(config)
    config.to_json()
    interruption = Interruption()
    with (
        signals_to(interruption.handle),
        # A network this small gains nothing from more, and the cores belong to the training that is watched.
        torch_threads(1),
        # What is refused up to here leaves no folders.
        contextlib.closing(build_env(config, make_env)) as env,
    ):
        check_writable(config.output)
        check_writable(config.tensorboard_folder)
        with only_process_in(config.output):
            return _train(config, env, _starting_point(config, resume), interruption)


def _train(
    config: TrainConfig, env: DummyVecEnv, checkpoint: Path | None, interruption: Interruption
) -> Path:
    settings = env.get_attr("settings")[0]
    if checkpoint is not None:
        check_settings(config.output, settings)
        warn_if_changed(config.output, settings.workload)
    model, seconds = _start(config, env, checkpoint)
    _warn_unless_exportable(model)
    _learn(config, settings, model, seconds, interruption)
    if model.num_timesteps > 0:  # else the run was interrupted before it began
        save_model(config.output, model)
    interruption.reraise()
    return config.output / "model.zip"


def _starting_point(config: TrainConfig, resume: bool) -> Path | None:
    checkpoint = latest_checkpoint(config.output)
    if resume and checkpoint is None:
        raise FileNotFoundError(f"no checkpoint to resume from in {config.output / 'checkpoints'}")
    held = checkpoint or config.output / "model.zip"
    if not resume and held.exists():
        raise FileExistsError(
            f"{config.output} already holds a run ({held.name}); resume it or choose another folder"
        )
    if checkpoint is not None and (config.output / "config.json").exists():
        _check_same_run(config, TrainConfig.load(config.output / "config.json"))
    return checkpoint


def _check_same_run(config: TrainConfig, before: TrainConfig) -> None:
    for name in OF_THE_AGENT:
        asked, had = plain(getattr(config, name)), plain(getattr(before, name))
        if asked != had:
            raise ValueError(
                f"{config.output} holds a run with {name}={had!r} and cannot go on with {asked!r}"
            )


def _start(config: TrainConfig, env: DummyVecEnv, checkpoint: Path | None) -> tuple[BaseAlgorithm, float]:
    if checkpoint is None:
        model, seconds = build_model(config, env), 0.0
    else:
        model, seconds = load_checkpoint(checkpoint, algorithm_class(config.algo), env)
    model.set_logger(_curves(config.tensorboard_folder, model.num_timesteps + 1))
    return model, seconds


def _warn_unless_exportable(model: BaseAlgorithm) -> None:
    try:
        layers, _ = network_layers(model.policy)
        size = sum(each.nbytes for layer in layers for each in layer)
        if size > MAX_FILE_BYTES:
            raise ValueError(f"a network of {size} bytes; a policy file has at most {MAX_FILE_BYTES}")
    except ValueError as error:
        # Not refused: curves can be looked at, and the model used with Stable-Baselines3.
        warnings.warn(f"what is trained here cannot be exported: {error}", RuntimeWarning, stacklevel=4)


def _curves(folder: Path, next_step: int) -> Logger:
    """A logger to one folder for the whole run, so that the curves of a resumed run are the same curves.

    Steps from ``next_step`` on, which a run that crashed logged after its last checkpoint, are not shown any more.
    """
    output = TensorBoardOutputFormat(str(folder))
    output.writer.close()
    output.writer = SummaryWriter(str(folder), purge_step=next_step)
    return Logger(str(folder), [output])


def _learn(
    config: TrainConfig,
    settings: BitWidthSettings,
    model: BaseAlgorithm,
    seconds: float,
    interruption: Interruption,
) -> None:
    limits = Limits(
        total_steps=config.total_steps, total_seconds=config.total_seconds, seconds_before=seconds
    )
    steps_left = (config.total_steps or ENDLESS) - model.num_timesteps
    if interruption() or steps_left <= 0 or limits.part_done(model.num_timesteps) >= 1.0:
        model.logger.close()
        if model.num_timesteps > 0 and not interruption():
            _say_that_it_is_done(config, model.num_timesteps, seconds)
        return
    config.save(config.output / "config.json")  # a run that is refused or has come to its end stays as it was
    save_settings(config.output, settings)
    save_origin(config.output, settings.workload)

    def save() -> Path:
        return save_checkpoint(config.output, model, limits.seconds)

    begun, progress, prices = model.num_timesteps, ProgressCallback(limits), repricing(model)
    callbacks = [
        LimitsCallback(limits, interruption),
        *([progress] if config.progress_bar else []),
        MetricsCallback(),
        *prices,
        CheckpointCallback(max(config.checkpoint_every // config.action_repeat, 1), save),
    ]
    try:
        model.learn(steps_left, callback=callbacks, log_interval=1, reset_num_timesteps=False)
    except Exception:
        # The signal that stopped us may have ended the workers as well: that is no failure of theirs.
        if not interruption():
            raise
    finally:
        # An environment that cannot start leaves the folder as it was, for another attempt.
        if model.num_timesteps > begun:
            try:
                for price in prices:
                    price.catch_up()  # where the reset after an episode has failed
            finally:
                save()
        progress.close()
        model.logger.dump(
            model.num_timesteps
        )  # figures of the last update, which come after that of its rollout
        model.logger.close()


def _say_that_it_is_done(config: TrainConfig, steps: int, seconds: float) -> None:
    limits = {"total_steps": config.total_steps, "total_seconds": config.total_seconds}
    given = " and ".join(f"{name}={value:g}" for name, value in limits.items() if value is not None)
    warnings.warn(
        f"nothing is left to learn: {config.output} has {steps} decisions in {seconds:.0f} s, and {given} counts "
        "from the start of the run. Raise it to go on",
        RuntimeWarning,
        stacklevel=5,  # whoever has called train
    )


def repricing(model: BaseAlgorithm) -> list[RepriceCallback]:
    """What keeps the replay buffer in step with the price of time, where there are both."""
    price = find_time_price(model)
    if price is None or not isinstance(model, OffPolicyAlgorithm) or model.replay_buffer is None:
        return []
    assert model.env is not None
    settings = model.env.get_attr("settings")[0]
    return [RepriceCallback(price, model.replay_buffer, settings.schema)]
