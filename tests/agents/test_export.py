"""A frozen policy acts exactly as the model that it came from."""

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from toy_env import toy_env
from toy_training import config_for

from mqgrad.agents.checkpoint import load_settings
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.export import export
from mqgrad.agents.sarsa import Sarsa
from mqgrad.agents.train import train
from mqgrad.agents.wrappers import WithWidth
from mqgrad.envs import BitWidthEnv
from mqgrad.policies.policy import FrozenPolicy, load_policy


def random_observations(env: BitWidthEnv, count: int) -> np.ndarray:
    low, high = env.settings.schema.bounds()
    return np.random.default_rng(0).uniform(low, high, (count, len(low))).astype(np.float32)


def rollout_observations(env: BitWidthEnv) -> list[np.ndarray]:
    observation, _ = env.reset(seed=5)
    seen, done = [observation], False
    while not done:
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(observation)
        done = terminated or truncated
    return seen


def assert_same_actions(
    model: BaseAlgorithm, frozen: FrozenPolicy, env: BitWidthEnv, normalize: VecNormalize | None = None
) -> None:
    normalize = normalize or model.get_vec_normalize_env()
    observations = np.array([*random_observations(env, 2000), *rollout_observations(env)])
    seen = normalize.normalize_obs(observations) if normalize else observations
    expected = model.predict(seen, deterministic=True)[0].tolist()
    assert [frozen.act(observation) for observation in observations] == expected
    assert len(set(expected)) > 1  # or the comparison shows nothing


@pytest.mark.parametrize("algorithm", [DQN, PPO, A2C])
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU])
def test_frozen_policy_acts_like_the_model(tmp_path: Path, algorithm: Any, activation: Any) -> None:
    env = toy_env()
    kwargs = {"net_arch": [32, 16], "activation_fn": activation}
    model = algorithm("MlpPolicy", env, seed=3, device="cpu", policy_kwargs=kwargs)
    export(model, tmp_path / "policy.mqg")
    assert_same_actions(model, load_policy(tmp_path / "policy.mqg"), env)


def test_normalization_is_carried(tmp_path: Path) -> None:
    env = toy_env()
    normalized = VecCheckNan(VecMonitor(VecNormalize(DummyVecEnv([lambda: env]), clip_obs=2.0)))
    model = PPO("MlpPolicy", normalized, n_steps=64, seed=3, device="cpu").learn(128)
    normalized.venv.venv.training = False
    export(model, tmp_path / "policy.mqg")
    assert_same_actions(model, load_policy(tmp_path / "policy.mqg"), env)


def test_observations_are_normalized_by_whichever_wrapper_does(tmp_path: Path) -> None:
    """Rewards may be normalized by another one."""
    env = toy_env()
    inner = VecNormalize(DummyVecEnv([lambda: env]), norm_reward=False, clip_obs=2.0)
    normalized = VecNormalize(inner, norm_obs=False)
    model = PPO("MlpPolicy", normalized, n_steps=64, seed=3, device="cpu").learn(128)
    inner.training = False
    export(model, tmp_path / "policy.mqg")
    assert_same_actions(model, load_policy(tmp_path / "policy.mqg"), env, inner)


def test_observations_that_are_normalized_twice_are_refused(tmp_path: Path) -> None:
    twice = VecNormalize(VecNormalize(DummyVecEnv([toy_env])))
    with pytest.raises(
        ValueError, match="that 2 VecNormalize have normalized, and of a PPO a frozen policy takes 1"
    ):
        export(PPO("MlpPolicy", twice, n_steps=64, seed=3, device="cpu"), tmp_path / "policy.mqg")
    env = WithWidth(toy_env(preset="authors"))
    once = VecNormalize(DummyVecEnv([lambda: env]))
    with pytest.raises(ValueError, match="and of a Sarsa a frozen policy takes 0"):
        export(Sarsa(env=once, seed=3), tmp_path / "policy.mqg")


def test_a_model_that_has_lost_its_normalization_is_refused(tmp_path: Path) -> None:
    normalized = VecNormalize(DummyVecEnv([toy_env]))
    PPO("MlpPolicy", normalized, n_steps=64, seed=3, device="cpu").learn(64).save(tmp_path / "model.zip")
    normalized.save(str(tmp_path / "statistics.pkl"))
    model = PPO.load(tmp_path / "model.zip", env=toy_env(), device="cpu")
    with pytest.raises(ValueError, match=r"learned under VecNormalize.*VecNormalize\.load"):
        export(model, tmp_path / "policy.mqg")
    restored = VecNormalize.load(str(tmp_path / "statistics.pkl"), DummyVecEnv([toy_env]))
    restored.training = False
    model = PPO.load(tmp_path / "model.zip", env=restored, device="cpu")
    export(model, tmp_path / "policy.mqg")
    assert_same_actions(model, load_policy(tmp_path / "policy.mqg"), toy_env())
    never = PPO("MlpPolicy", toy_env(), n_steps=64, seed=3, device="cpu").learn(64)
    export(never, tmp_path / "policy.mqg")


def reversed_actions(env: gymnasium.Env) -> gymnasium.Env:
    return gymnasium.wrappers.TransformAction(env, lambda action: 7 - action, env.action_space)


WRAPPERS = [
    gymnasium.wrappers.NormalizeObservation,
    lambda env: gymnasium.wrappers.TransformObservation(env, np.tanh, env.observation_space),
    reversed_actions,
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("vector", [DummyVecEnv, lambda makers: SubprocVecEnv(makers, "fork")])
def test_wrappers_that_change_what_is_observed_or_done_are_refused(
    tmp_path: Path, wrapper: Any, vector: Any
) -> None:
    with contextlib.closing(vector([lambda: wrapper(toy_env())])) as env:
        model = PPO("MlpPolicy", env, n_steps=64, seed=3, device="cpu")
        with pytest.raises(ValueError, match=r"of the kind (Observation|Action)Wrapper.*VecNormalize"):
            export(model, tmp_path / "policy.mqg")
    assert not (tmp_path / "policy.mqg").exists()


def test_wrappers_that_stack_observations_or_repeat_actions_are_refused(tmp_path: Path) -> None:
    wrapped = [gymnasium.wrappers.FrameStackObservation(toy_env(), 1)]
    if hasattr(gymnasium.wrappers, "RepeatAction"):
        wrapped.append(gymnasium.wrappers.RepeatAction(toy_env(), 2))
    for env in wrapped:
        model = PPO("MlpPolicy", env, n_steps=64, seed=3, device="cpu")
        with pytest.raises(ValueError, match=f"of the kind {type(env).__name__}"):
            export(model, tmp_path / "policy.mqg")


def test_vectorized_wrappers_that_change_observations_are_refused(tmp_path: Path) -> None:
    stacked = VecFrameStack(DummyVecEnv([toy_env]), 1)
    model = PPO("MlpPolicy", stacked, n_steps=64, seed=3, device="cpu")
    with pytest.raises(ValueError, match="what VecFrameStack made of observations"):
        export(model, tmp_path / "policy.mqg")


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_nothing_is_learned_that_could_not_be_exported(tmp_path: Path, wrapper: Any) -> None:
    """Nothing of it is left in ``model.zip``, and its export would be wrong without a word."""
    with pytest.raises(ValueError, match=r"of the kind (Observation|Action)Wrapper"):
        train(config_for(tmp_path), make_env=lambda: wrapper(toy_env()))
    train(config_for(tmp_path, total_steps=3), make_env=lambda: RecordEpisodeStatistics(toy_env()))


def test_sarsa_compares_the_current_width_with_the_next(tmp_path: Path) -> None:
    env = toy_env(preset="authors", max_steps=60)
    model = Sarsa(env=DummyVecEnv([lambda: WithWidth(env)]), seed=3).learn(100)
    export(model, tmp_path / "policy.mqg")
    frozen = load_policy(tmp_path / "policy.mqg")
    observations = np.random.default_rng(0).uniform(0.5, 2.5, (500, 5)).astype(np.float32)
    for index, bits in enumerate(env.settings.widths):
        seen = np.insert(observations, 5, index, axis=1)
        expected = model.predict(seen, deterministic=True)[0].tolist()
        at_width = dataclasses.replace(frozen, initial_bits=bits)
        assert [at_width.act(observation) for observation in observations] == expected


def test_a_checkpoint_is_exported_from_within_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config_for(tmp_path / "run", total_steps=3), make_env=toy_env)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    monkeypatch.chdir(checkpoint)
    assert export("model.zip", tmp_path / "policy.mqg").provenance["config"]["total_steps"] == 3


def test_export_from_a_run_folder_tells_where_the_policy_comes_from(tmp_path: Path) -> None:
    config = TrainConfig(
        output=tmp_path / "run",
        algo="dqn",
        total_steps=60,
        seed=11,
        warm_start="none",
        env={
            "workload": "digits-mlp",
            "workload_settings": {
                "width": 16,
                "data_root": "data",
                "folder": str(tmp_path / "of one's own"),
                "files": [str(tmp_path / "a"), "b"],
            },
        },
        progress_bar=False,
    )
    model_zip = train(config, make_env=toy_env)
    frozen = export(model_zip, tmp_path / "policy.mqg")
    assert frozen.budget_seconds == 150.0  # that of the environment it really had
    assert frozen.initial_bits == 4
    facts = load_policy(tmp_path / "policy.mqg").provenance
    assert (facts["algorithm"], facts["steps"], facts["seed"]) == ("DQN", 60, 11)
    assert facts["config"]["env"] == {
        "workload": "digits-mlp",
        "workload_settings": {"width": 16, "files": ["b"]},
    }
    assert facts["versions"]["torch"] == torch.__version__
    assert str(tmp_path) not in str(facts)
    made_by = {"versions": {"torch": "2.0"}, "git_revision": "abc"}  # who exports it has gone on to another
    (model_zip.parent / "origin.json").write_text(json.dumps(made_by))
    assert export(model_zip, tmp_path / "policy.mqg").provenance.items() >= made_by.items()
    (model_zip.parent / "origin.json").write_text("{}")
    with pytest.raises(ValueError, match=r"origin\.json does not hold"):
        export(model_zip, tmp_path / "policy.mqg")


def test_a_policy_that_learned_in_simulation_is_exported_like_any_other(tmp_path: Path) -> None:
    env = {
        "workload": "digits-mlp",
        "workload_settings": {"width": 16},
        "simulated": True,
        "clock": {"compute_seconds": 0.01, "mbit_per_s": 10.0},
    }
    config = TrainConfig(
        output=tmp_path, total_steps=3, warm_start="none", env=env, progress_bar=False, algo="dqn"
    )
    model_zip = train(config)
    assert export(model_zip, tmp_path / "policy.mqg").budget_seconds == 5.0
    learned_in = load_policy(tmp_path / "policy.mqg").provenance["environment"]
    assert learned_in["simulated"]
    assert learned_in["clock"] == {"compute_seconds": 0.01, "mbit_per_s": 10.0, "latency_ms": 0.0}
    (tmp_path / "environment.json").unlink()  # the configuration alone is enough
    assert export(model_zip, tmp_path / "policy.mqg").provenance["config"]["env"] == env


@pytest.mark.parametrize("text", ["{", "[]", '{"interval": 0}', '{"colour": 1}', '{"clock": {"rate": 1}}'])
def test_damaged_settings_of_a_run_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(ValueError, match=r"environment\.json holds no settings"):
        load_settings(tmp_path)


def test_a_model_without_its_run_folder_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", toy_env(), device="cpu")
    model.save(tmp_path / "model.zip")
    with pytest.raises(FileNotFoundError, match=r"config\.json, which says how"):
        export(tmp_path / "model.zip", tmp_path / "policy.mqg")
    with pytest.raises(FileNotFoundError, match=f"folder of the policy file does not exist: '{tmp_path}/no'"):
        export(model, tmp_path / "no" / "policy.mqg")


class OtherEnv(gymnasium.Env):
    """Random observations of some space, to build models that cannot be exported."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.settings = toy_env().settings

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


IMAGES = spaces.Box(0, 255, (36, 36, 3), dtype=np.uint8)
VECTORS = spaces.Box(-1.0, 1.0, (21,))


@pytest.mark.parametrize(
    ("policy", "observations", "actions", "message"),
    [
        ("CnnPolicy", IMAGES, spaces.Discrete(8), "NatureCNN"),
        ("MlpPolicy", VECTORS, spaces.Box(-1.0, 1.0, (2,)), "only discrete actions"),
        ("MultiInputPolicy", spaces.Dict(a=VECTORS), spaces.Discrete(8), "CombinedExtractor"),
        ("MlpPolicy", VECTORS, spaces.Discrete(3), "3 outputs"),
        ("MlpPolicy", spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(8), "21 numbers"),
    ],
)
def test_what_cannot_be_frozen_is_refused(
    tmp_path: Path, policy: str, observations: spaces.Space, actions: spaces.Space, message: str
) -> None:
    model = PPO(policy, OtherEnv(observations, actions), device="cpu")
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "policy.mqg")
    assert not (tmp_path / "policy.mqg").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"interval": 5}, {"interval": 20}),
        ({"widths": (2, 4)}, {"widths": (4, 8)}),
        ({"opening": 2}, {"opening": 9}),
    ],
)
def test_environments_that_one_policy_cannot_be_for_are_refused(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any]
) -> None:
    ((name, value),), (second,) = one.items(), other.values()
    several = DummyVecEnv([lambda: toy_env(**one), lambda: toy_env(**other)])
    model = PPO("MlpPolicy", several, n_steps=64, seed=3, device="cpu")
    told = re.escape(f"{name}={value!r} and {second!r}, and a policy has one")
    with pytest.raises(ValueError, match=told):
        export(model, tmp_path / "policy.mqg")
    links = DummyVecEnv(
        [lambda: toy_env(10.0, link_mbit_per_s=10.0), lambda: toy_env(20.0, link_mbit_per_s=20.0)]
    )
    export(PPO("MlpPolicy", links, n_steps=64, seed=3, device="cpu"), tmp_path / "policy.mqg")


class DuelingNetwork(QNetwork):
    """Its values are not what its layers alone compute."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values = super().forward(obs)
        return -values


class DuelingPolicy(DQNPolicy):
    def make_q_net(self) -> QNetwork:
        return DuelingNetwork(**self._update_features_extractor(self.net_args, None)).to(self.device)


class Doubled(FlattenExtractor):
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(observations)


@pytest.mark.parametrize(
    ("algorithm", "policy", "kwargs", "message"),
    [
        (DQN, DuelingPolicy, {}, "a DuelingPolicy cannot be exported"),
        (PPO, "MlpPolicy", {"features_extractor_class": Doubled}, "not those of a Doubled"),
    ],
)
def test_networks_that_compute_otherwise_with_the_same_layers_are_refused(
    tmp_path: Path, algorithm: Any, policy: Any, kwargs: dict[str, Any], message: str
) -> None:
    model = algorithm(policy, toy_env(), device="cpu", policy_kwargs=kwargs)
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "policy.mqg")


def test_a_mixed_network_is_refused(tmp_path: Path) -> None:
    model = DQN("MlpPolicy", toy_env(), device="cpu", buffer_size=10)
    model.q_net.q_net.append(torch.nn.Softmax(dim=1))
    with pytest.raises(ValueError, match="perceptron"):
        export(model, tmp_path / "policy.mqg")
