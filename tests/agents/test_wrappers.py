"""What is around the environment while an agent learns: the price of time, repeated actions, an end at the budget."""

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_env import goodput, toy_env
from toy_link import COMPUTE_SECONDS, ToyLink, efficiency

from mqgrad.agents.build import build_env, build_model
from mqgrad.agents.checkpoint import find_time_price
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.time_price import SCALE, TimePrice
from mqgrad.agents.train import repricing
from mqgrad.agents.wrappers import ActionRepeat, BudgetEnds
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
    typical = SCALE * 0.001 * efficiency(2) * 20
    for action in (1, 3, 1, 1, 3, 3, 1):
        shaped = env.step(np.int64(action))[1]
        assert abs(float(shaped)) < 0.1 * typical


@pytest.mark.parametrize("smoothed", [False, True])
def test_the_loss_of_an_interval_stands_for_its_middle_and_a_moving_average_for_its_end(
    smoothed: bool,
) -> None:
    env = TimePrice(toy_env(budget_seconds=BUDGET), budget_seconds=BUDGET, smoothed=smoothed)
    before = env.reset(seed=0)[1]["elapsed_seconds"]
    after = env.step(np.int64(2))[4]["elapsed_seconds"]
    assert env._path[-1][0] == pytest.approx((after if smoothed else (before + after) / 2) / BUDGET)


def priced(returns_to_go: Any, **settings: Any) -> TimePrice:
    env = TimePrice(toy_env(budget_seconds=BUDGET), budget_seconds=BUDGET, **settings)
    env.returns_to_go = np.array(returns_to_go)
    return env


def test_seconds_cost_what_the_episode_itself_gains_in_them() -> None:
    """At one price for all links the decisions of a slow one are losses, and those of a fast one gains."""
    usual = 2.0 * (1 - np.linspace(0.0, 1.0, 21))
    by_pace, at_one_price = priced(usual, by_pace=True), priced(usual)
    spent = np.array([0.1, 0.5, 0.8])
    for pace in (0.25, 3.0):
        gained, before = 0.05 * pace * 2.0, pace * 2.0 * spent
        charged, charged_all = (e.price(spent, spent + 0.05, before) for e in (by_pace, at_one_price))
        assert (abs(charged - gained) < 0.85 * abs(charged_all - gained)).all()
    assert by_pace.price(0.5, 0.6, -50.0) == pytest.approx(0.1 * 0.1 * 2.0)
    assert by_pace.price(0.5, 0.6, 1e9) == pytest.approx(10.0 * 0.1 * 2.0)


def test_there_is_no_pace_while_no_episode_has_ended_or_where_all_lose() -> None:
    assert priced(np.zeros(21), by_pace=True).price(0.2, 0.4, 1.0) == 0.0
    losing = priced(np.linspace(0.0, 1.0, 21) - 1.0, by_pace=True)
    assert losing.price(0.2, 0.4, 1.0) == pytest.approx(-0.2)


def test_the_price_follows_the_pace_where_episodes_draw_their_links() -> None:
    for link, differ in ((20.0, False), ((10.0, 1000.0), True)):
        config = TrainConfig(output=Path("unused"), total_steps=3)
        env = build_env(config, lambda link=link: toy_env(link_mbit_per_s=link))  # type: ignore[misc]
        assert env.envs[0].get_wrapper_attr("by_pace") is differ


@pytest.mark.filterwarnings("ignore:budget_seconds")
def test_the_first_episode_may_end_with_its_first_interval() -> None:
    """Then no transition is in the replay buffer yet whose reward could be shaped anew."""
    config = TrainConfig(output=Path("unused"), algo="dqn", total_steps=3, warm_start="none")
    model = build_model(config, build_env(config, lambda: toy_env(budget_seconds=1e-3)))
    model.learn(3, callback=repricing(model))
    price = find_time_price(model)
    assert price is not None
    assert price.episodes == 3


@pytest.mark.parametrize("link", [20.0, (5.0, 500.0)])
def test_a_replay_buffer_holds_what_the_latest_potential_would_have_given(link: Any) -> None:
    config = TrainConfig(output=Path("unused"), algo="dqn", total_steps=150, warm_start="none")
    model = build_model(config, build_env(config, lambda: toy_env(budget_seconds=60.0, link_mbit_per_s=link)))
    model.learn(150, callback=repricing(model))
    price = find_time_price(model)
    buffer = model.replay_buffer  # type: ignore[attr-defined]
    assert price is not None
    assert price.episodes >= 3
    # Play the same decisions again under the final potential, which is held fixed.
    again = BudgetEnds(toy_env(budget_seconds=60.0, link_mbit_per_s=link))
    replayed = TimePrice(again, budget_seconds=60.0, by_pace=price.by_pace)
    replayed.returns_to_go = price.returns_to_go.copy()
    replayed._learn = lambda: None  # type: ignore[method-assign]
    replayed.reset(seed=config.seed)
    for row in range(buffer.size()):
        _, reward, terminated, _, _ = replayed.step(np.int64(buffer.actions[row, 0, 0]))
        assert buffer.rewards[row, 0] == pytest.approx(float(reward), abs=5e-4)
        if terminated:
            replayed.reset()


def test_a_full_replay_buffer_holds_the_same_as_a_larger_one() -> None:
    def rewards(buffer_size: int) -> np.ndarray:
        at_random = {"buffer_size": buffer_size, "learning_starts": 300}
        config = TrainConfig(
            output=Path("unused"), algo="dqn", total_steps=300, warm_start="none", hyperparameters=at_random
        )
        model = build_model(config, build_env(config, lambda: toy_env(budget_seconds=60.0)))
        model.learn(300, callback=repricing(model))
        buffer = model.replay_buffer  # type: ignore[attr-defined]
        return np.roll(buffer.rewards[:, 0], -buffer.pos)  # the latest last

    np.testing.assert_allclose(rewards(130), rewards(400)[-130:], atol=5e-4)


def test_an_episode_that_diverges_says_nothing_of_what_others_gain() -> None:
    """Its penalty is no return: the price of time would have a step where it diverged, for ten episodes."""
    env = TimePrice(toy_env(budget_seconds=60.0), budget_seconds=60.0)
    cluster = env.get_wrapper_attr("_cluster").cluster
    for diverges in (False, True):
        env.reset(seed=0)
        ended = False
        while not ended:
            _, _, terminated, truncated, info = env.step(np.int64(3))
            ended = terminated or truncated
            if diverges:
                cluster.log_loss = 100.0
        assert info["diverged"] is diverges
        if not diverges:
            usual = env.returns_to_go.copy()
    assert env.episodes == 1
    assert (env.returns_to_go == usual).all()


@pytest.mark.parametrize(
    ("algo", "settings", "priced"),
    [
        ("dqn", {}, True),
        ("dqn", {"smoothing_seconds": 5.0}, False),
        ("dqn", {"observation": "loss"}, False),
        ("ppo", {"smoothing_seconds": 5.0}, True),
    ],
)
def test_rewards_that_cannot_be_priced_anew_are_not_priced(
    algo: str, settings: dict[str, Any], priced: bool
) -> None:
    config = TrainConfig(output=Path("unused"), algo=algo, total_steps=3, warm_start="none")
    model = build_model(config, build_env(config, lambda: toy_env(**settings)))
    assert (find_time_price(model) is not None) is priced


def test_a_repeated_action_gains_what_its_intervals_gain_and_ends_with_the_episode() -> None:
    one_by_one, repeated = toy_env(max_steps=5), ActionRepeat(toy_env(max_steps=5), 3)
    for env in (one_by_one, repeated):
        env.reset(seed=0)
    for action, intervals in ((4, 3), (1, 2)):
        steps = [one_by_one.step(np.int64(action)) for _ in range(intervals)]
        observation, reward, terminated, truncated, info = repeated.step(np.int64(action))
        assert reward == pytest.approx(sum(float(step[1]) for step in steps))
        assert np.array_equal(observation, steps[-1][0])
        assert (terminated, truncated, info) == steps[-1][2:]
    assert truncated


def test_an_action_that_goes_one_width_up_is_not_repeated() -> None:
    """It went up in each interval: to the fifth next width, while the policy's "one up" is the next."""
    config = TrainConfig(output=Path("unused"), total_steps=1, action_repeat=5)
    with pytest.raises(ValueError, match=r"action_repeat=5 would take 5 widths up .* 'keep-or-increase'"):
        build_env(config, lambda: toy_env(action="keep-or-increase"))


def test_whole_episodes_count_where_actions_are_repeated(tmp_path: Path) -> None:
    def parts(**settings: Any) -> tuple[float, bool]:
        config = TrainConfig(output=tmp_path, total_steps=1, warm_start="none", **settings)
        with contextlib.closing(build_env(config, lambda: toy_env(link_mbit_per_s=(10.0, 100.0)))) as env:
            model = build_model(config, env)
            price = find_time_price(model)
            assert price is not None
            return model.gamma, price.by_pace

    assert parts() == (0.7, True)
    assert parts(action_repeat=10) == (1.0, False)
    assert parts(action_repeat=10, hyperparameters={"gamma": 0.9}) == (0.9, False)
