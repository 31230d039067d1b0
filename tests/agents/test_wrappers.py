"""The price of time."""

import math
from pathlib import Path

import numpy as np
import pytest
from toy_link import COMPUTE_SECONDS, ToyLink, efficiency, goodput, toy_env

from mqgrad.agents.build import build_env, build_model
from mqgrad.agents.checkpoint import find_time_price
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.train import repricing
from mqgrad.agents.wrappers import BudgetEnds, TimePrice
from mqgrad.envs import BitWidthEnv

BUDGET = 100.0


def test_widths_of_equal_goodput_are_worth_the_same_right_after_a_switch() -> None:
    """Gain and seconds of a decision must fall into the same steps, or slow and fast widths differ in worth."""
    seconds_per_bit = (
        COMPUTE_SECONDS * (efficiency(4) - efficiency(2)) / (4 * efficiency(2) - 2 * efficiency(4))
    )
    mbit_per_s = 1 / seconds_per_bit
    assert goodput(2, mbit_per_s) == pytest.approx(goodput(4, mbit_per_s))
    cluster = ToyLink(mbit_per_s, rate=0.001, decay=math.inf, loss_noise=0.0)
    env = TimePrice(BitWidthEnv(cluster=cluster, budget_seconds=BUDGET, interval=20), budget_seconds=BUDGET)
    env.returns_to_go = 0.001 * goodput(2, mbit_per_s) * BUDGET * (1 - env.grid)
    env.reset(seed=0)
    typical = env.scale * 0.001 * efficiency(2) * 20
    for action in (1, 3, 1, 1, 3, 3, 1):
        shaped = env.step(np.int64(action))[1]
        assert abs(float(shaped)) < 0.1 * typical


def test_the_first_episode_may_end_with_its_first_interval() -> None:
    """Then no transition is in the replay buffer yet whose reward could be shaped anew."""
    config = TrainConfig(output=Path("unused"), algo="dqn", total_steps=3, warm_start="none")
    model = build_model(config, build_env(config, lambda: toy_env(budget_seconds=1e-3)))
    model.learn(3, callback=repricing(model))
    price = find_time_price(model)
    assert price is not None
    assert price.episodes == 3


def test_a_replay_buffer_holds_what_the_latest_potential_would_have_given() -> None:
    config = TrainConfig(output=Path("unused"), algo="dqn", total_steps=150, warm_start="none")
    model = build_model(config, build_env(config, lambda: toy_env(budget_seconds=60.0)))
    model.learn(150, callback=repricing(model))
    price = find_time_price(model)
    buffer = model.replay_buffer  # type: ignore[attr-defined]
    assert price is not None
    assert price.episodes >= 3
    # Play the same decisions again under the final potential, which is held fixed.
    replayed = TimePrice(BudgetEnds(toy_env(budget_seconds=60.0)), budget_seconds=60.0)
    replayed.returns_to_go = price.returns_to_go.copy()
    replayed._learn = lambda: None  # type: ignore[method-assign]
    replayed.reset(seed=config.seed)
    for row in range(buffer.size()):
        _, reward, terminated, _, _ = replayed.step(np.int64(buffer.actions[row, 0, 0]))
        assert buffer.rewards[row, 0] == pytest.approx(float(reward), abs=2e-4)
        if terminated:
            replayed.reset()
