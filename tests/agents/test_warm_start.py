"""The goodput rule, read from an observation, and a network that imitates it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from intervals import BASE
from stable_baselines3 import DQN
from toy_env import FAST, SLOW, goodput, toy_env

from mqgrad.agents.build import build_env, build_model
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.warm_start import expected_advantage, progress_and_seconds, rule_action
from mqgrad.codecs.quantization_noise import Coding
from mqgrad.envs import BitWidthEnv
from mqgrad.policies.observation import ObservationSchema
from mqgrad.policies.observer import Observer
from mqgrad.statistics.step_times import StepTimes


@pytest.mark.parametrize("mbit_per_s", [SLOW, FAST])
def test_the_rule_read_from_an_observation_is_the_one_of_the_statistics(mbit_per_s: float) -> None:
    env = toy_env(mbit_per_s)
    observations = np.array([_after_trying_widths(env, seed) for seed in range(50)], dtype=np.float64)
    schema = env.settings.schema
    progress, seconds = progress_and_seconds(observations, schema)
    found = np.median(progress / seconds, axis=0)[
        :5
    ]  # what is far from the widths tried is seen with optimism
    wanted = np.array([goodput(bits, mbit_per_s) for bits in schema.widths[:5]])
    np.testing.assert_allclose(found / found.max(), wanted / wanted.max(), rtol=0.25)


@pytest.mark.parametrize("relative_bytes", [1.0, 2.0])
def test_seconds_read_from_an_observation_are_those_that_were_learned(relative_bytes: float) -> None:
    """Where codes are gathered among four ranks, they send twice the bytes, and 32 bits do not."""
    schema, times = ObservationSchema(), StepTimes()
    observer = Observer(schema)
    for bits, seconds in ((4, 0.2), (2, 0.13), (8, 0.3), (2, 0.15)):
        interval = dataclasses.replace(
            BASE, bits=bits, step_seconds=seconds, coding=Coding(relative_bytes=relative_bytes)
        )
        times.observe(interval)
        observation = observer.observe(interval)
    _, relative = progress_and_seconds(observation[None].astype(np.float64), schema, relative_bytes)
    expected = [times.seconds(bits) for bits in schema.widths]
    np.testing.assert_allclose(relative[0] * times.fixed_seconds, expected, rtol=1e-4)


def _after_trying_widths(env: BitWidthEnv, seed: int) -> np.ndarray:
    env.reset(seed=seed)
    return [env.step(env.settings.widths.index(bits))[0] for bits in (2, 8, 2, 8)][-1]


def test_the_choice_of_the_rule_has_the_highest_advantage() -> None:
    env = toy_env(SLOW)
    observation = env.reset(seed=0)[0][None].astype(np.float64)
    advantage = expected_advantage(observation, env.settings.schema)[0]
    assert advantage.max() == 0.0
    assert env.settings.widths[int(advantage.argmax())] == 3
    assert advantage[-1] < -1  # 32 bits take many times as long for hardly more progress


def test_the_rule_goes_to_four_times_the_bits_in_use_at_most() -> None:
    """As the controller does, however fast the link is."""
    env = toy_env(FAST)
    env.reset(seed=0)
    observation = env.step(env.settings.widths.index(1))[0]
    progress, seconds = progress_and_seconds(observation[None].astype(np.float64), env.settings.schema)
    assert env.settings.widths[int((progress / seconds)[0].argmax())] > 4
    assert env.settings.widths[rule_action(observation, env.settings.schema)] == 4


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_warm_network_decides_like_the_rule_before_any_step(tmp_path: Path, algo: str) -> None:
    config = TrainConfig(output=tmp_path, algo=algo, total_steps=1, warm_start="goodput")
    model = build_model(config, build_env(config, toy_env))
    for mbit_per_s, right in ((SLOW, {3}), (FAST, {4, 6, 8, 16, 32})):
        env = toy_env(mbit_per_s)
        actions = [int(model.predict(env.reset(seed=seed)[0], deterministic=True)[0]) for seed in range(20)]
        assert np.mean([env.settings.widths[action] in right for action in actions]) > 0.7


def test_a_warm_dqn_chooses_from_its_first_decision_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitations = []
    monkeypatch.setattr("mqgrad.agents.build.imitate_goodput", lambda *_, **__: imitations.append("goodput"))
    still = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0, "learning_rate": 0.0}
    config = TrainConfig(output=tmp_path, algo="dqn", total_steps=1, hyperparameters=still)
    model = build_model(config, build_env(config, toy_env)).learn(20)
    assert imitations == ["goodput"]
    assert isinstance(model, DQN)
    assert model.replay_buffer is not None
    chosen, _ = model.predict(model.replay_buffer.observations[:20, 0], deterministic=True)
    assert model.replay_buffer.actions[:20, 0, 0].tolist() == chosen.tolist()


def test_it_needs_an_action_for_each_width(tmp_path: Path) -> None:
    config = TrainConfig(output=tmp_path, total_steps=1, warm_start="goodput")
    with pytest.raises(ValueError, match=r'needs action="absolute".* 8 widths, got Discrete\(2\)'):
        build_model(config, build_env(config, lambda: toy_env(action="keep-or-increase")))
    config.warm_start = "auto"
    build_model(config, build_env(config, lambda: toy_env(action="keep-or-increase")))


def test_it_needs_the_observation_that_holds_the_statistics(tmp_path: Path) -> None:
    config = TrainConfig(output=tmp_path, total_steps=1, warm_start="goodput")
    with pytest.raises(ValueError, match='needs observation="full"'):
        build_model(config, build_env(config, lambda: toy_env(observation="loss")))
