"""The environment and the Stable-Baselines3 model that a configuration describes."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from mqgrad.envs import ENV_ID, BitWidthSettings

from .config import TrainConfig
from .sarsa import Sarsa
from .time_price import TimePrice
from .warm_start import imitate_goodput
from .wrappers import ActionRepeat, BudgetEnds, WithWidth, check_unchanged

MakeEnv = Callable[[], gymnasium.Env]

# Chosen by experiment (experiments/benchmarks/learning.py, last in f3a472b) for a run of 500-1500 decisions,
# 8 widths, noisy rewards.
PRESETS: dict[str, dict[str, Any]] = {
    "dqn": {
        "learning_rate": 1e-3,
        "buffer_size": 20_000,
        "learning_starts": 40,
        "batch_size": 64,
        "gamma": 0.8,
        "n_steps": 3,
        "train_freq": 1,
        "gradient_steps": 1,
        "target_update_interval": 25,
        "exploration_fraction": 0.5,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.05,
        "policy_kwargs": {"net_arch": [64, 64]},
    },
    "ppo": {
        "learning_rate": 1e-3,
        "n_steps": 64,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.7,
        "gae_lambda": 0.8,
        "ent_coef": 0.01,
        "policy_kwargs": {"net_arch": [64, 64]},
    },
    "sarsa": {},
}
"""Arguments of each algorithm's constructor that suit this problem."""


WARM_PRESETS: dict[str, dict[str, Any]] = {
    "dqn": {
        "learning_rate": 3e-4,
        "learning_starts": 0,  # before which actions are drawn, not chosen
        "exploration_initial_eps": 0.3,
    },
    "ppo": {"learning_rate": 3e-4},
}
"""What changes when the network starts from the goodput rule: smaller steps, less exploration."""


REPEAT_PRESETS: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": 1e-3, "n_steps": 32, "batch_size": 32, "gamma": 1.0, "gae_lambda": 1.0},
}
"""What changes, in its turn, when actions are repeated: an episode is a few decisions, each worth its whole rest."""


WARM_STARTED = ("dqn", "ppo", "a2c")


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Find an algorithm by name, in any case: ours, or one of Stable-Baselines3.

    Raises:
        ValueError: for an unknown name.
    """
    if name.lower() == "sarsa":
        return Sarsa
    for attribute, value in vars(stable_baselines3).items():
        if attribute.lower() == name.lower() and isinstance(value, type) and issubclass(value, BaseAlgorithm):
            return value
    raise ValueError(f"unknown algorithm {name!r}; choose dqn, ppo, sarsa or a class of stable_baselines3")


def check_agent(config: TrainConfig) -> None:
    """Find before workers start what training would not take.

    Raises:
        ValueError: for an unknown algorithm, repeated actions with one that is off-policy, or a replay buffer without
            the observations that rewards are priced by.
    """
    algorithm = algorithm_class(config.algo)
    if config.action_repeat > 1 and not issubclass(algorithm, OnPolicyAlgorithm):
        raise ValueError(
            f"action_repeat={config.action_repeat} needs an on-policy algorithm such as ppo, got {config.algo!r}"
        )
    if config.hyperparameters.get("optimize_memory_usage"):
        raise ValueError(
            "optimize_memory_usage: SB3's replay buffer then lacks the observations after each step, by which "
            "rewards are priced anew; leave it out"
        )


def build_env(config: TrainConfig, make_env: MakeEnv | None = None) -> DummyVecEnv:
    """One environment under what the agent needs around it.

    The Monitor sits below the shaping: ``rollout/ep_rew_mean`` is the environment's own return.
    """
    return DummyVecEnv([lambda: _wrap(config, (make_env or _registered(config))())])


def build_model(config: TrainConfig, env: DummyVecEnv) -> BaseAlgorithm:
    """The algorithm of ``config`` with its preset and overrides, not yet trained.

    Raises:
        ValueError: for an algorithm that cannot choose among discrete actions, or refuses the hyperparameters.
    """
    algorithm = algorithm_class(config.algo)
    settings = env.get_attr("settings")[0]
    warm = starts_warm(config, settings)
    # Copied: A2C adds its optimizer's class to the policy_kwargs that it is given, which JSON cannot hold.
    arguments = copy.deepcopy({**_preset(config, warm=warm), **config.hyperparameters})
    try:
        model = algorithm("MlpPolicy", env, seed=config.seed, device="cpu", **arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"algorithm {config.algo!r} with {arguments} on {env.action_space} is refused: {error}"
        ) from error
    if warm:
        imitate_goodput(model, settings.schema, relative_bytes=settings.relative_bytes, seed=config.seed)
    return model


def _preset(config: TrainConfig, *, warm: bool) -> dict[str, Any]:
    tables = [
        PRESETS,
        *([WARM_PRESETS] if warm else []),
        *([REPEAT_PRESETS] if config.action_repeat > 1 else []),
    ]
    return {name: value for table in tables for name, value in table.get(config.algo, {}).items()}


def starts_warm(config: TrainConfig, settings: BitWidthSettings) -> bool:
    """Whether the network is to imitate the goodput rule before it learns."""
    if config.warm_start == "auto":
        has_what_it_needs = settings.observation == "full" and settings.action == "absolute"
        return config.algo in WARM_STARTED and has_what_it_needs
    return config.warm_start == "goodput"


def _registered(config: TrainConfig) -> MakeEnv:
    return lambda: gymnasium.make(ENV_ID, **config.env_arguments())


def _wrap(config: TrainConfig, env: gymnasium.Env) -> gymnasium.Env:
    if not isinstance(env.action_space, spaces.Discrete):
        raise ValueError(f"expected discrete actions, got {env.action_space}")
    check_unchanged(partial(is_wrapped, env))  # here, as an export may see the saved model alone
    env = BudgetEnds(Monitor(env))
    if config.algo == "sarsa":
        return WithWidth(env)
    settings = env.get_wrapper_attr("settings")
    if config.time_price and settings.budget_seconds is not None and _can_be_priced(config, settings):
        # A price that follows the pace takes from an episode what it gains by being better all along.
        by_pace = isinstance(settings.link_mbit_per_s, tuple) and config.action_repeat == 1
        env = TimePrice(
            env,
            budget_seconds=settings.budget_seconds,
            by_pace=by_pace,
            smoothed=settings.smoothing_seconds > 0,
        )
    return ActionRepeat(env, config.action_repeat) if config.action_repeat > 1 else env


def _can_be_priced(config: TrainConfig, settings: BitWidthSettings) -> bool:
    """Whether all rewards that an algorithm learns from can be shaped by the newest potential. A replay buffer's have
    to be brought up to date, by what observations show of the return so far."""
    plain_drop = settings.discount_per_second == 1.0 and settings.smoothing_seconds == 0.0
    shows_return = settings.observation == "full" and settings.reward == "log-loss" and plain_drop
    return shows_return or issubclass(algorithm_class(config.algo), OnPolicyAlgorithm)
