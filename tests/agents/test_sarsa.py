"""The reproduction of the authors' agent, against arithmetic by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_env import toy_env

from mqgrad.agents.config import TrainConfig
from mqgrad.agents.sarsa import INCREASE, KEEP, Sarsa
from mqgrad.agents.train import train
from mqgrad.agents.wrappers import WithWidth


def make_sarsa(**arguments: object) -> Sarsa:
    env = DummyVecEnv([lambda: WithWidth(toy_env(preset="authors", max_steps=40))])
    return Sarsa(env=env, seed=0, **arguments)  # type: ignore[arg-type]


def state(loss: float, index: int) -> np.ndarray:
    return np.array([[loss] * 5 + [index]], dtype=np.float32)


def test_two_widths_to_choose_from_are_not_to_keep_or_increase() -> None:
    with pytest.raises(ValueError, match=r"action is 'absolute'.*--preset authors"):
        WithWidth(toy_env(widths=(2, 8)))


def test_network_is_the_authors() -> None:
    model = make_sarsa()
    assert [tuple(p.shape) for p in model.policy.net.parameters()] == [(30, 5), (30,), (7, 30), (7,)]
    assert (model.gamma, model.learning_rate, model.exploration) == (0.9, 0.05, 0.1)
    assert model.env is not None
    assert model.env.reset()[0, -1] == 0  # starts at 2 bits


def test_update_is_the_step_computed_by_hand() -> None:
    model = make_sarsa(policy_kwargs={"hidden": 1}, normalize=False)
    first, _, last = model.policy.net
    assert isinstance(first, torch.nn.Linear)
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        first.weight.fill_(0.1)
        first.bias.fill_(0.0)
        last.weight.fill_(0.5)
        last.bias.copy_(torch.arange(7) / 10)
    # Width index 2, increase to 3: Q = 0.5·tanh(0.1·5·2) + 0.3; then keep at 3 with losses of 1.
    h, h_next = math.tanh(1.0), math.tanh(0.5)
    q, q_next = 0.5 * h + 0.3, 0.5 * h_next + 0.3
    error = 2.0 + 0.9 * q_next - q
    increase, keep = np.array([INCREASE]), np.array([KEEP])
    found = model.update(state(2.0, 2), increase, np.array([2.0]), state(1.0, 3), keep, np.array([False]))
    assert found == pytest.approx(error, rel=1e-6)
    step = 0.05 * error
    assert last.bias[3].item() == pytest.approx(0.3 + step, rel=1e-5)
    assert last.bias[2].item() == pytest.approx(0.2)
    assert last.weight[3, 0].item() == pytest.approx(0.5 + step * h, rel=1e-5)
    assert first.bias[0].item() == pytest.approx(step * 0.5 * (1 - h * h), rel=1e-5)
    assert first.weight[0].tolist() == pytest.approx([0.1 + step * 0.5 * (1 - h * h) * 2.0] * 5, rel=1e-5)


def test_the_end_of_an_episode_is_worth_nothing() -> None:
    model = make_sarsa()
    with torch.no_grad():
        model.policy.net[2].bias.fill_(0.7)
        q = float(model._q(state(2.0, 1), np.array([KEEP])))
    found = model.update(
        state(2.0, 1), np.array([KEEP]), np.array([1.5]), state(9.0, 0), np.array([KEEP]), np.array([True])
    )
    assert found == pytest.approx(1.5 - q, rel=1e-5)


def test_greedy_compares_the_current_width_with_the_next_and_stays_at_the_last() -> None:
    model = make_sarsa(normalize=False)
    last = model.policy.net[2]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.0, 1.0, 0.5, 0.5, 2.0, 1.0, 3.0]))
    greedy = [int(model.predict(state(2.0, i)[0], deterministic=True)[0]) for i in range(7)]
    assert greedy == [1, 0, 1, 1, 0, 1, 0]  # of equal ones the higher


def test_probes_come_only_where_greedy_keeps() -> None:
    model = make_sarsa(exploration=0.25)
    last = model.policy.net[2]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        last.bias[3] = 0.5
    chosen = [int(model.choose(state(2.0, 3))[0]) for _ in range(2000)]
    assert np.mean(chosen) == pytest.approx(0.25, abs=0.04)
    with torch.no_grad():
        last.bias[4] = 1.0
    assert {int(model.choose(state(2.0, 3))[0]) for _ in range(50)} == {INCREASE}


def test_sarsa_trains_and_resumes_like_the_others(tmp_path: Path) -> None:
    def make_env():  # type: ignore[no-untyped-def]
        return toy_env(preset="authors", max_steps=40)

    config = TrainConfig.authors(tmp_path, total_steps=90, progress_bar=False)
    train(config, make_env=make_env)
    config.total_steps = 130
    model = Sarsa.load(train(config, make_env=make_env, resume=True))
    assert model.num_timesteps == 130
    assert model.losses_seen == 5 * (90 + 40 + 2)
    assert float(model.policy.loss_std) != 1.0
