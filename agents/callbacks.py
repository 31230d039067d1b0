"""What happens beside learning: TensorBoard figures, checkpoints, the end of the run, a progress bar."""

import contextlib
import dataclasses
import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from tqdm import tqdm

from mqgrad.policies.observation import ObservationSchema
from mqgrad.statistics.losses import log_loss
from mqgrad.widths import format_width

from .time_price import SCALE, TimePrice

FEW_DECISIONS = 3
"""In fewer an episode has hardly a choice to learn from: the last one is cut off by its end."""
_LOOKED_AT = 5  # first episodes
TIMES = ("compute_seconds", "encode_seconds", "wire_seconds", "decode_seconds")


@dataclasses.dataclass(kw_only=True, slots=True)
class Limits:
    """When a run ends: after steps, after seconds, or whichever comes first."""

    total_steps: int | None
    total_seconds: float | None
    seconds_before: float = 0.0
    """Seconds that earlier runs of the same folder took."""
    started: float | None = None
    """When learning began; None before."""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds so far, earlier runs included."""
        return self.seconds_before + (0.0 if self.started is None else time.monotonic() - self.started)

    def part_done(self, steps: int) -> float:
        """Part of the run that is done after ``steps``, in [0, 1]."""
        by_steps = steps / self.total_steps if self.total_steps else 0.0
        by_time = self.seconds / self.total_seconds if self.total_seconds else 0.0
        return min(max(by_steps, by_time), 1.0)


class MetricsCallback(BaseCallback):
    """Write bits, bytes, loss and time split of each decision's last interval, and each episode's drop in log-loss.

    Records go out at every step: a step is an interval of real training, so writing costs nothing beside it.
    """

    def _on_training_start(self) -> None:
        self._opening_loss = self._loss_after_reset()
        self._decisions = 0
        self._most, self._episodes = 0, 0

    def _on_step(self) -> bool:
        info, done = self.locals["infos"][0], bool(self.locals["dones"][0])
        self._decisions += 1
        self.logger.record("mqgrad/bits", info["bits"])
        self.logger.record("mqgrad/loss", info["loss"])
        self.logger.record("mqgrad/wire_mib", info["wire_bytes"] / 2**20)
        for name in (*TIMES, "link_mbit_per_s"):
            if info[name] is not None:  # there is no rate without a link
                self.logger.record(f"mqgrad/{name}", info[name])
        if done:
            self._record_episode(info)
        self.logger.dump(self.num_timesteps)
        return True

    def _record_episode(self, info: dict[str, Any]) -> None:
        drop = log_loss(self._opening_loss) - log_loss(info["loss"])
        self.logger.record("mqgrad/episode_log_loss_drop", drop)
        self.logger.record("mqgrad/episode_return", info["episode"]["r"])
        self._opening_loss = self._loss_after_reset()
        self._warn_of_short_episodes()

    def _warn_of_short_episodes(self) -> None:
        self._most, self._episodes = max(self._most, self._decisions), self._episodes + 1
        self._decisions = 0
        if self._episodes == _LOOKED_AT and self._most < FEW_DECISIONS:
            decisions = "one decision" if self._most == 1 else f"{self._most} decisions"
            warnings.warn(
                f"none of the first {_LOOKED_AT} episodes had more than {decisions}, from which hardly anything can "
                "be learned: give longer episodes (budget_seconds), or actions of fewer iterations (interval, "
                "action_repeat)",
                RuntimeWarning,
                stacklevel=2,
            )

    def _loss_after_reset(self) -> float:
        # A vectorised environment resets by itself; what the reset showed is kept there.
        return self.training_env.reset_infos[0]["loss"]


class RepriceCallback(BaseCallback):
    """After each episode, shape all rewards of the replay buffer by the new potential of :class:`TimePrice`.

    Needs what ``observation="full"`` has: the drop in log-loss so far, which is the return, and the part of the
    budget that is spent.
    """

    def __init__(self, price: TimePrice, buffer: ReplayBuffer, schema: ObservationSchema) -> None:
        super().__init__()
        self.price = price
        self.buffer = buffer
        self._spent, self._drop = (schema.at(name).start for name in ("spent", "drop"))
        self._episodes = price.episodes
        self._old = price.returns_to_go.copy()

    def _on_step(self) -> bool:
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Shape anew, if the potential has changed."""
        # The transition under way is not in the buffer yet; it was shaped by the new potential already.
        if self.price.episodes != self._episodes:
            self._reprice()
            self._episodes, self._old = self.price.episodes, self.price.returns_to_go.copy()

    def _reprice(self) -> None:
        buffer = self.buffer
        first = buffer.pos if buffer.full else 0
        rows = (first + np.arange(buffer.size())) % buffer.buffer_size  # in the order of time
        spent = buffer.observations[rows, :, self._spent].astype(np.float64)
        after = buffer.next_observations[rows, :, self._spent].astype(np.float64)
        gained = buffer.observations[rows, :, self._drop].astype(np.float64)
        over = buffer.dones[rows] > 0
        cut = over | (buffer.timeouts[rows] > 0)
        # The row above shows where the interval before began.
        before = np.where(np.roll(cut, 1, axis=0), 0.0, np.roll(spent, 1, axis=0))
        # No row is above the first, and there is none yet where the first episode ended with its first interval. Of a
        # full buffer the first is what the transition under way replaces.
        before[:1] = 0.0
        price = self.price
        at, at_after = price.stands_at(before, spent), np.where(over, 1.0, price.stands_at(spent, after))
        charged = price.price(at, at_after, gained, self._old)
        buffer.rewards[rows] += SCALE * (charged - price.price(at, at_after, gained))


class LimitsCallback(BaseCallback):
    """End the run at its limits or when ``interrupted`` says so; let DQN's schedules follow the clock.

    Only SB3's off-policy algorithms ask how many steps there will be as they go on. On-policy ones (PPO, A2C) keep
    the number that they were started with: without a limit of steps their schedules hardly move. The presets have
    none.
    """

    def __init__(self, limits: Limits, interrupted: Callable[[], bool]) -> None:
        super().__init__()
        self.limits = limits
        self.interrupted = interrupted

    def _on_training_start(self) -> None:
        # Workers are up and the first episode is open: their start is no part of what was learned in.
        self.limits.started = time.monotonic()

    def _on_step(self) -> bool:
        part = self.limits.part_done(self.num_timesteps)
        time_is_up = (
            self.limits.total_seconds is not None and self.limits.seconds >= self.limits.total_seconds
        )
        # DQN's schedules (exploration, learning rate) follow steps / _total_timesteps. Under a wall-clock limit
        # the number of steps is not known beforehand, so it is extrapolated from the part that is done.
        self.model._total_timesteps = max(math.ceil(self.num_timesteps / max(part, 1e-6)), self.num_timesteps)
        # The limit of steps is SB3's own: it ends after the last transition was learned from, this before.
        return not (time_is_up and self._may_end()) and not self.interrupted()

    def _may_end(self) -> bool:
        """On-policy algorithms learn from a rollout when it is complete, and would lose what there is of one."""
        return not isinstance(self.model, OnPolicyAlgorithm) or self.model.rollout_buffer.pos == 0


class CheckpointCallback(BaseCallback):
    """Call ``save`` every so many steps."""

    def __init__(self, every: int, save: Callable[[], object]) -> None:
        super().__init__()
        self.every = every
        self.save = save

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.save()
        return True


class ProgressCallback(BaseCallback):
    """A bar over steps, or over seconds where the run is limited by time.

    SB3's own bar counts steps only and needs a terminal; this one writes a line now and then elsewhere. That nobody
    reads it any more (``2>&1 | head``) is no reason to stop learning.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self._by_time = limits.total_seconds is not None

    def _on_training_start(self) -> None:
        total = self.limits.total_seconds if self._by_time else self.limits.total_steps
        terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=round(total or 0),
            unit="s" if self._by_time else "step",
            desc="training the policy",
            mininterval=0.5 if terminal else 10.0,
            ascii=not terminal,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {n:.0f}/{total:.0f} {unit} [{elapsed}]{postfix}",
        )

    def _on_step(self) -> bool:
        done = self.limits.seconds if self._by_time else self.num_timesteps
        info = self.locals["infos"][0]
        bits = format_width(info["bits"])
        with contextlib.suppress(OSError):
            self._bar.set_postfix_str(
                f" {self.num_timesteps} decisions, {bits} bits, loss {info['loss']:.3f}",
                refresh=False,
            )
            self._bar.update(min(done, self._bar.total) - self._bar.n)
        return True

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands; also after an interruption."""
        if hasattr(self, "_bar"):
            with contextlib.suppress(OSError):
                self._bar.close()
