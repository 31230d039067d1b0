"""What an agent needs around ``mqgrad/BitWidth-v0`` and a user of the environment does not."""

from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, MaxAndSkipObservation, NormalizeObservation

from mqgrad.widths import Width

CHANGING: tuple[type[gymnasium.Wrapper], ...] = (
    gymnasium.ObservationWrapper,
    gymnasium.ActionWrapper,
    NormalizeObservation,
    MaxAndSkipObservation,
    FrameStackObservation,
    *filter(None, [getattr(gymnasium.wrappers, "RepeatAction", None)]),  # since Gymnasium 1.3
)
"""What a frozen policy cannot hold: it is given observations as they are, and what it chooses is what is done."""


class BudgetEnds(gymnasium.Wrapper):
    """Report a spent budget as the end of the episode.

    The budget of seconds is part of the task and the ``full`` observation shows how much of it is spent, so nothing
    is to be bootstrapped from the state at its end, which is what algorithms do at a truncation. So it is where an
    observation does not show it, and with a limit of decisions (``max_steps``), which none shows.
    """

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info


class ActionRepeat(gymnasium.Wrapper):
    """Keep to every action for several intervals, and reward it with the sum of what they gained.

    A width may show its worth over many intervals only: the mean loss of each is noisy, error feedback sends later
    what a code has left out, and the noise of a code stays in Adam's second moment for a thousand iterations. What an
    action of one interval among others is rewarded with is little of that. Deployed, the policy decides in every
    interval all the same.

    Args:
        repeats: intervals of an action, unless the episode ends before.

    Raises:
        ValueError: actions are not widths: to go one width up would be repeated, too.
    """

    def __init__(self, env: gymnasium.Env, repeats: int) -> None:
        super().__init__(env)
        action = env.get_wrapper_attr("settings").action
        if action != "absolute":
            raise ValueError(
                f"action_repeat={repeats} would take {repeats} widths up in one decision where the action is "
                f"{action!r}: leave action_repeat out, or give the environment action='absolute'"
            )
        self.repeats = repeats

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """The last interval's observation and info, and the sum of the rewards."""
        total = 0.0
        for _ in range(self.repeats):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class WithWidth(gymnasium.Wrapper):
    """Append the index of the current width to the observation, so that an action is a function of it.

    The authors' state is the losses alone and their agent remembers the width beside it.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        settings = env.get_wrapper_attr("settings")
        self.widths: tuple[Width, ...] = settings.widths
        inner = env.observation_space
        assert isinstance(inner, spaces.Box)
        if settings.action != "keep-or-increase":
            raise ValueError(
                f"sarsa keeps or increases the width, and here the action is {settings.action!r}: give the "
                "environment preset='authors' (--preset authors)"
            )
        low = np.append(inner.low, 0.0).astype(np.float32)
        high = np.append(inner.high, len(self.widths) - 1.0).astype(np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def reset(self, **kwargs: Any) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return self._append(observation, info["bits"]), info

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._append(observation, info["bits"]), reward, terminated, truncated, info

    def _append(self, observation: npt.NDArray[np.float32], bits: Width) -> npt.NDArray[np.float32]:
        return np.append(observation, self.widths.index(bits)).astype(np.float32)


def check_unchanged(is_wrapped: Callable[[type[gymnasium.Wrapper]], bool]) -> None:
    """Refuse an environment whose policies would be wrong without its wrappers.

    Args:
        is_wrapped: whether a wrapper of that class, or of one derived from it, is around the environment.

    Raises:
        ValueError: naming the first of :data:`CHANGING` that is.
    """
    for kind in CHANGING:
        if is_wrapped(kind):
            raise ValueError(
                f"around the environment is a wrapper of the kind {kind.__name__}, which changes what an agent "
                "observes or does, and a frozen policy has no such wrapper: leave it out, or normalize a model of "
                "your own with VecNormalize"
            )
