"""Observations as a model has learned from them: what of that a frozen policy can do, too."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecCheckNan, VecEnvWrapper, VecMonitor, VecNormalize

from mqgrad.policies.policy_network import Normalization

from .network_layers import network_layers
from .sarsa import SarsaPolicy
from .wrappers import check_unchanged


def normalization(model: BaseAlgorithm) -> Normalization | None:
    """What is done to observations before the model's network has them; None if nothing is.

    Raises:
        ValueError: the model lacks the statistics of VecNormalize that it has learned under.
    """
    if isinstance(model.policy, SarsaPolicy):
        size = network_layers(model.policy)[0][0][0].shape[1]
        mean, std = float(model.policy.loss_mean), float(model.policy.loss_std)
        return Normalization(mean=np.full(size, mean), std=np.full(size, std), clip=model.policy.CLIP)
    if model.get_vec_normalize_env() is None:
        _check_never_normalized(model)
    normalizing = _normalizing(model)
    if not normalizing:
        return None
    [normalize] = normalizing
    statistics: Any = normalize.obs_rms
    std = np.sqrt(statistics.var + normalize.epsilon)
    return Normalization(mean=statistics.mean.astype(np.float64), std=std, clip=normalize.clip_obs)


def _check_never_normalized(model: BaseAlgorithm) -> None:
    # SB3 saves it with a model: what VecNormalize was given last. Off-policy algorithms set it in any case.
    if isinstance(model, OnPolicyAlgorithm) and model._last_original_obs is not None:
        raise ValueError(
            "the model learned under VecNormalize, and its environment has none, so that the policy would be given "
            "observations of another scale: load the model with env=VecNormalize.load(file, env), from the file that "
            "its save wrote (or with VecNormalize(env, norm_obs=False), if observations were left alone)"
        )


def check_observations(model: BaseAlgorithm) -> None:
    """A frozen policy is given observations as the environment has them, normalized by one VecNormalize at most.

    Raises:
        ValueError: the model has learned from others.
    """
    wrappers = list(_vector_wrappers(model))
    for wrapper in wrappers:
        if type(wrapper) not in (VecNormalize, VecMonitor, VecCheckNan):
            raise ValueError(
                f"the model learned from what {type(wrapper).__name__} made of observations, and a frozen policy has "
                "no such wrapper: leave it out, or normalize with VecNormalize"
            )
    normalizing, most = _normalizing(model), 0 if isinstance(model.policy, SarsaPolicy) else 1
    if len(normalizing) > most:
        raise ValueError(
            f"the model learned from observations that {len(normalizing)} VecNormalize have normalized, and of a "
            f"{type(model).__name__} a frozen policy takes {most}: give the others norm_obs=False"
        )
    around = wrappers[-1].venv if wrappers else model.env
    if around is not None:
        check_unchanged(lambda kind: any(around.env_is_wrapped(kind)))


def _vector_wrappers(model: BaseAlgorithm) -> Iterator[VecEnvWrapper]:
    """Around the model's environments, the outermost first."""
    venv = model.env
    while isinstance(venv, VecEnvWrapper):
        yield venv
        venv = venv.venv


def _normalizing(model: BaseAlgorithm) -> list[VecNormalize]:
    """Those wrappers that normalize observations."""
    return [each for each in _vector_wrappers(model) if isinstance(each, VecNormalize) and each.norm_obs]
