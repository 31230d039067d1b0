"""From a Stable-Baselines3 model to a frozen policy file that needs no SB3 to run."""

import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecEnvWrapper, VecMonitor, VecNormalize
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn

from mqgrad.envs import BitWidthSettings
from mqgrad.envs.settings import make_settings
from mqgrad.policies.policy import FrozenPolicy
from mqgrad.policies.policy_network import Normalization

from .build import algorithm_class
from .checkpoint import load_model, load_settings
from .config import TrainConfig
from .origin import load_origin, origin
from .sarsa import SarsaPolicy
from .wrappers import check_unchanged

Layers = list[tuple[torch.Tensor, torch.Tensor]]

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}
_ENVIRONMENT = (
    "workload",
    "num_workers",
    "link_mbit_per_s",
    "link_latency_ms",
    "compressor",
    "period",
    "reward",
    "smoothing_seconds",
    "discount_per_second",
)


_OF_THE_POLICY = (
    "widths",
    "observation",
    "history",
    "action",
    "interval",
    "opening",
    "initial_bits",
    "budget_seconds",
)


def export(model: BaseAlgorithm | str | Path, path: str | Path) -> FrozenPolicy:
    """Write the policy of a trained model to ``path`` and return it.

    The frozen policy picks exactly the actions of ``model.predict(observation, deterministic=True)``.

    Args:
        model: a model with its environment, or the ``model.zip`` of a run folder, which tells how and in what
            environment it was trained. Loading a zip runs code from it: open only your own. If it learned under
            VecNormalize, its environment must have that with its statistics, ``VecNormalize.load(file, env)``: of PPO
            and A2C that is checked, of DQN it cannot be, and without them the policy would be wrong.
        path: the ``.mqg`` file to write.

    Raises:
        ValueError: for what a frozen policy cannot hold: images, continuous actions, recurrent or custom
            networks, wrappers that change observations or actions, or a network that does not fit the
            environment's observation and widths; several environments that differ in what a policy holds; a model
            that lacks the statistics of VecNormalize; a damaged one.
        FileNotFoundError: if there is no model, or nothing says how and for what environment it was made.
    """
    config: TrainConfig | None = None
    settings: BitWidthSettings | None = None
    made_by = origin()
    if not isinstance(model, BaseAlgorithm):
        run = _run_folder(Path(model))
        config, settings, made_by = _saved_config(run), load_settings(run), load_origin(run) or made_by
        model = load_model(Path(model), algorithm_class(config.algo))
    layers, activation = network_layers(model.policy)
    _check_observations(model)
    settings = settings or _settings_of(model, config)
    frozen = FrozenPolicy(
        schema=settings.schema,
        layers=layers,
        activation=activation,
        action=_action_mode(model.policy, settings),
        interval=settings.interval,
        opening=settings.opening,
        initial_bits=settings.first_bits,
        normalization=_normalization(model),
        budget_seconds=settings.budget_seconds,
        provenance=provenance(model, config, settings) | made_by,
    )
    frozen.save(path)
    return frozen


def network_layers(policy: BasePolicy) -> tuple[Layers, str]:
    """The linear layers from observation to action values or logits, and the activation between them.

    Raises:
        ValueError: for a network that is not a plain multilayer perceptron of one activation.
    """
    if not isinstance(policy.action_space, spaces.Discrete):
        raise ValueError(f"only discrete actions can be exported, not {policy.action_space}")
    modules = [module for part in _actor_parts(policy) for module in _leaves(part)]
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    between = [module for module in modules if not isinstance(module, nn.Linear)]
    kinds = {type(module) for module in between}
    if len(between) != len(linear) - 1 or len(kinds) > 1 or not kinds <= set(_ACTIVATIONS):
        raise ValueError(f"only a tanh or relu perceptron can be exported, not {modules}")
    layers = [
        (
            m.weight.detach().cpu().clone(),
            torch.zeros(m.out_features) if m.bias is None else m.bias.detach().cpu().clone(),
        )
        for m in linear
    ]
    return layers, _ACTIVATIONS[kinds.pop()] if kinds else "tanh"


def provenance(
    model: BaseAlgorithm, config: TrainConfig | None, settings: BitWidthSettings
) -> dict[str, Any]:
    """Where a policy comes from, as plain JSON: algorithm, steps, seed, settings, date."""
    facts = {
        "algorithm": type(model).__name__,
        "steps": model.num_timesteps,
        "seed": model.seed,
        "config": _without_paths(config) if config else None,
        "environment": {name: getattr(settings, name) for name in _ENVIRONMENT},
        "exported": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    return json.loads(json.dumps(facts, default=str))


def _actor_parts(policy: BasePolicy) -> list[nn.Module]:
    extractor = getattr(policy, "features_extractor", None) or getattr(
        getattr(policy, "q_net", None), "features_extractor", None
    )
    if extractor is not None and not isinstance(extractor, FlattenExtractor):
        raise ValueError(f"only flat observations can be exported, not those of a {type(extractor).__name__}")
    if isinstance(policy, SarsaPolicy):
        return [policy.net]
    if isinstance(policy, DQNPolicy):
        return [policy.q_net.q_net]
    if isinstance(policy, ActorCriticPolicy) and type(policy).__name__ == "ActorCriticPolicy":
        return [policy.mlp_extractor.policy_net, policy.action_net]
    raise ValueError(
        f"a {type(policy).__name__} cannot be exported; train DQN, PPO or A2C with MlpPolicy, or sarsa"
    )


def _leaves(module: nn.Module) -> list[nn.Module]:
    children = list(module.children())
    if not children:
        return [] if isinstance(module, (nn.Sequential, nn.Identity, nn.Flatten)) else [module]
    return [leaf for child in children for leaf in _leaves(child)]


def _action_mode(policy: BasePolicy, settings: BitWidthSettings) -> str:
    return "compare-widths" if isinstance(policy, SarsaPolicy) else settings.action


def _normalization(model: BaseAlgorithm) -> Normalization | None:
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


def _check_observations(model: BaseAlgorithm) -> None:
    """A frozen policy is given observations as the environment has them, normalized by one VecNormalize at most."""
    wrappers = list(_vector_wrappers(model))
    for wrapper in wrappers:
        if type(wrapper) not in (VecNormalize, VecMonitor):
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


def _settings_of(model: BaseAlgorithm, config: TrainConfig | None) -> BitWidthSettings:
    if model.env is not None:
        return _common(model.env.get_attr("settings"))
    if config is not None:
        arguments = config.env_arguments()
        return make_settings(arguments.pop("preset", None), arguments)
    raise FileNotFoundError(
        "nothing says what environment the model was made for; give it one, or export the model.zip of its run folder"
    )


def _common(settings: list[BitWidthSettings]) -> BitWidthSettings:
    """Those of the first of several environments, which differ in nothing that a policy holds: in links, say."""
    for name in _OF_THE_POLICY:
        values = list(dict.fromkeys(getattr(each, name) for each in settings))
        if len(values) > 1:
            raise ValueError(
                f"the model learned in environments with {name}={' and '.join(map(repr, values))}, and a policy has "
                f"one: give all of them the same {name}"
            )
    return settings[0]


def _run_folder(zip_path: Path) -> Path:
    """The folder of the run that a model or one of its checkpoints belongs to."""
    if not zip_path.exists():
        raise FileNotFoundError(f"there is no model at {zip_path}")
    zip_path = zip_path.absolute()
    candidates = [zip_path.parent, *list(zip_path.parents)[1:3]]
    return next((folder for folder in candidates if (folder / "config.json").exists()), zip_path.parent)


def _saved_config(run: Path) -> TrainConfig:
    path = run / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}, which says how the model was trained: export from the run folder of `mqgrad train`"
        )
    return TrainConfig.load(path)


def _without_paths(config: TrainConfig) -> dict[str, Any]:
    """A policy file travels; where its run and its data lay on this machine does not concern anyone."""
    settings = {
        k: v for k, v in config.to_dict().items() if k not in ("output", "tensorboard", "progress_bar")
    }
    if workload := settings["env"].get("workload_settings"):
        kept = {k: v for k, v in workload.items() if k not in ("data_root", "data_path")}
        settings["env"] = {**settings["env"], "workload_settings": kept}
    return _without_absolute(settings)


def _without_absolute(value: Any) -> Any:
    """A value of JSON without absolute paths, whatever they are called: a workload has settings of its own."""
    if isinstance(value, dict):
        return {name: _without_absolute(part) for name, part in value.items() if not _is_absolute(part)}
    if isinstance(value, list):
        return [_without_absolute(part) for part in value if not _is_absolute(part)]
    return value


def _is_absolute(value: Any) -> bool:
    return isinstance(value, str) and os.path.isabs(os.path.expanduser(value))
