"""Training an agent: its curves, resuming, limits, and mistakes in what is asked for."""

import dataclasses
import importlib
import itertools
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN, PPO
from toy_env import toy_env
from toy_link import ToyLink
from toy_training import config_for, tags

from mqgrad.agents.build import algorithm_class
from mqgrad.agents.callbacks import Limits
from mqgrad.agents.checkpoint import latest_checkpoint, load_model
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.time_price import TimePrice
from mqgrad.agents.train import train
from mqgrad.agents.wrappers import BudgetEnds
from mqgrad.trainers import ModelClock
from mqgrad.trainers.clusters.errors import WorkerError


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_tensorboard_has_our_tags_and_those_of_sb3(tmp_path: Path, algo: str) -> None:
    train(config_for(tmp_path, algo=algo, total_steps=192), make_env=toy_env)
    events = tags(tmp_path / "tensorboard")
    ours = {"bits", "loss", "wire_mib", "compute_seconds", "encode_seconds", "wire_seconds", "decode_seconds"}
    assert {f"mqgrad/{name}" for name in ours} <= set(events.Tags()["scalars"])
    assert {"mqgrad/episode_log_loss_drop", "rollout/ep_rew_mean", "train/loss"} <= set(
        events.Tags()["scalars"]
    )
    bits = events.Scalars("mqgrad/bits")
    assert [event.step for event in bits] == list(range(1, 193))
    assert {event.value for event in bits} <= {1, 2, 3, 4, 6, 8, 16, 32}
    # The return that is reported is the environment's, not the shaped one: log-losses from 2.3 down.
    assert 0.0 < events.Scalars("rollout/ep_rew_mean")[-1].value < 2.0


def test_resuming_continues_steps_buffer_schedule_and_curves(tmp_path: Path) -> None:
    train(config_for(tmp_path, total_steps=100), make_env=toy_env)
    before = load_model(tmp_path / "model.zip", DQN)
    time.sleep(1.1)  # event files are read in the order of their names, which tell whole seconds
    train(config_for(tmp_path, total_steps=160), resume=True, make_env=toy_env)
    after = load_model(tmp_path / "model.zip", DQN)
    assert (before.num_timesteps, after.num_timesteps) == (100, 160)
    after.load_replay_buffer(latest_checkpoint(tmp_path) / "replay_buffer.pkl")  # type: ignore[operator]
    assert after.replay_buffer is not None
    assert after.replay_buffer.size() == 160
    assert after._n_updates > before._n_updates
    assert after.exploration_rate <= before.exploration_rate
    steps = [event.step for event in tags(tmp_path / "tensorboard").Scalars("mqgrad/bits")]
    assert steps == list(range(1, 161))
    progress = json.loads((latest_checkpoint(tmp_path) / "progress.json").read_text())  # type: ignore[operator]
    assert progress["steps"] == 160
    assert progress["time_price"]["episodes"] > 0


def test_what_a_crashed_run_logged_after_its_checkpoint_is_not_shown_twice(tmp_path: Path) -> None:
    train(config_for(tmp_path, total_steps=60, checkpoint_every=40), make_env=toy_env)
    shutil.rmtree(tmp_path / "checkpoints" / "step_00000060")  # as if it had been killed before
    time.sleep(1)  # files of events are read in the order of the seconds in their names
    train(config_for(tmp_path, total_steps=70), resume=True, make_env=toy_env)
    events = tags(tmp_path / "tensorboard")
    assert [event.step for event in events.Scalars("mqgrad/bits")] == list(range(1, 71))
    assert [event.step for event in events.Scalars("rollout/ep_rew_mean")] == sorted(
        {event.step for event in events.Scalars("rollout/ep_rew_mean")}
    )


def test_numbers_of_numpy_are_taken_as_plain_ones(tmp_path: Path) -> None:
    """As the environment takes them, and JSON, which a run folder is kept in, has none."""
    config = config_for(tmp_path, total_steps=np.int64(3), seed=np.int32(1), env={"interval": np.int64(5)})
    assert [type(value) for value in (config.total_steps, config.seed)] == [int, int]
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json").env == {"interval": 5}


def test_equal_seeds_give_equal_policies(tmp_path: Path) -> None:
    one, two = (load_model(train(config_for(tmp_path / name), make_env=toy_env), DQN) for name in ("a", "b"))
    for p, q in zip(one.policy.parameters(), two.policy.parameters(), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_a_limit_of_time_stops_and_exploration_follows_the_clock(tmp_path: Path) -> None:
    started = time.monotonic()
    model_zip = train(config_for(tmp_path, total_steps=None, total_seconds=1.0), make_env=toy_env)
    assert time.monotonic() - started < 30.0
    assert load_model(model_zip, DQN).exploration_rate < 0.3
    with pytest.raises(FileExistsError, match="already holds a run"):
        train(config_for(tmp_path), make_env=toy_env)


def test_at_a_limit_of_time_an_on_policy_algorithm_learns_from_the_rollout_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second passes whenever somebody looks at the clock."""
    clock = itertools.count()
    monkeypatch.setattr(Limits, "seconds", property(lambda limits: float(next(clock))))
    config = config_for(tmp_path, algo="ppo", total_steps=None, total_seconds=30.0)
    model = load_model(train(config, make_env=toy_env), PPO)
    assert model.num_timesteps == model.n_steps + 1  # the first of the next one asks
    assert model._n_updates > 0


@pytest.mark.parametrize(("env", "named"), [({"workload": "nope"}, "nope"), ({"widths": (3, 2)}, "widths")])
def test_settings_that_are_refused_leave_no_folder(tmp_path: Path, env: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        train(config_for(tmp_path / "run", env=env))
    assert not list(tmp_path.iterdir())


def test_an_environment_that_cannot_start_leaves_the_folder_free(tmp_path: Path) -> None:
    def broken() -> gymnasium.Env:
        env = toy_env()
        env.reset = lambda **_: _raise(WorkerError(1, "the data of this rank is broken"))
        return env

    with pytest.raises(WorkerError, match="is broken"):
        train(config_for(tmp_path), make_env=broken)
    assert latest_checkpoint(tmp_path) is None
    train(config_for(tmp_path), make_env=toy_env)


def test_a_run_that_cannot_go_on_stays_as_it_was(tmp_path: Path) -> None:
    def broken() -> gymnasium.Env:
        env = toy_env()
        env.reset = lambda **_: time.sleep(0.5) or _raise(WorkerError(1, "does not start"))
        return env

    train(config_for(tmp_path), make_env=toy_env)
    progress = latest_checkpoint(tmp_path) / "progress.json"  # type: ignore[operator]
    before = progress.read_text()
    with pytest.raises(WorkerError, match="does not start"):
        train(config_for(tmp_path, total_steps=200), resume=True, make_env=broken)
    assert progress.read_text() == before


def test_a_buffer_is_priced_anew_where_the_reset_after_an_episode_fails(tmp_path: Path) -> None:
    """Or the potential would be saved beside rewards that were shaped by the one before."""

    def fails_later() -> gymnasium.Env:
        env, resets = toy_env(budget_seconds=60.0), itertools.count()
        begin = env.reset
        env.reset = lambda **given: begin(**given) if next(resets) < 2 else _raise(WorkerError(1, "is gone"))
        return env

    with pytest.raises(WorkerError, match="is gone"):
        train(config_for(tmp_path), make_env=fails_later)
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    model = load_model(checkpoint / "model.zip", DQN)
    model.load_replay_buffer(checkpoint / "replay_buffer.pkl")
    price = json.loads((checkpoint / "progress.json").read_text())["time_price"]
    assert price["episodes"] == 2
    rewards = model.replay_buffer.rewards[: model.replay_buffer.size(), 0]  # type: ignore[union-attr]
    again = TimePrice(BudgetEnds(toy_env(budget_seconds=60.0)), budget_seconds=60.0)
    again.returns_to_go = np.array(price["returns_to_go"])
    again._learn = lambda: None  # type: ignore[method-assign]
    again.reset(seed=model.seed)
    for row, reward in enumerate(rewards):
        action = model.replay_buffer.actions[row, 0, 0]  # type: ignore[union-attr]
        _, expected, ended, _, _ = again.step(np.int64(action))
        assert reward == pytest.approx(float(expected), abs=5e-4)
        if ended:
            again.reset()


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hyperparameters": {"gamma": 0.1}}, r"hyperparameters=\{\} and cannot go on with \{'gamma': 0.1\}"),
        ({"seed": 9}, "cannot go on with 9"),
        ({"time_price": False}, "time_price=True"),
    ],
)
def test_a_run_goes_on_with_its_own_settings_only(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    train(config_for(tmp_path, total_steps=20), make_env=toy_env)
    with pytest.raises(ValueError, match=message):
        train(config_for(tmp_path, total_steps=40, **changed), resume=True, make_env=toy_env)
    train(config_for(tmp_path, total_steps=21), resume=True, make_env=toy_env)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"budget_seconds": 75.0},
            r"budget_seconds=150\.0 and cannot go on in one with budget_seconds=75\.0",
        ),
        ({"link_mbit_per_s": (10, 100)}, r"link_mbit_per_s=None .* link_mbit_per_s=\[10, 100\]"),
        ({"world_size": 4}, "num_workers=2 and cannot go on in one with num_workers=4"),
    ],
)
def test_a_run_goes_on_in_its_own_environment_only(
    tmp_path: Path, other: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config_for(tmp_path, total_steps=20), make_env=toy_env)
    before = (tmp_path / "environment.json").read_text()
    other = dict(other)
    monkeypatch.setattr(ToyLink, "world_size", other.pop("world_size", 2))
    with pytest.raises(ValueError, match=f"{tmp_path} holds a run in an environment with {message}"):
        train(config_for(tmp_path, total_steps=40), resume=True, make_env=lambda: toy_env(**other))
    assert (tmp_path / "environment.json").read_text() == before
    monkeypatch.undo()
    patient = {"timeout_seconds": 99.0}
    train(config_for(tmp_path, total_steps=21), resume=True, make_env=lambda: toy_env(**patient))


def test_a_run_with_nothing_left_to_learn_keeps_its_limits(tmp_path: Path) -> None:
    """After a mistyped limit, a resume without one did nothing."""
    train(config_for(tmp_path, total_steps=20), make_env=toy_env)
    with pytest.warns(RuntimeWarning, match="nothing is left to learn"):
        train(config_for(tmp_path, total_steps=10), resume=True, make_env=toy_env)
    assert TrainConfig.load(tmp_path / "config.json").total_steps == 20


def test_episodes_without_a_choice_are_warned_of(tmp_path: Path) -> None:
    """An opening and one or two intervals spend the budget."""
    with pytest.warns(RuntimeWarning, match="none of the first 5 episodes had more than one decision"):
        train(config_for(tmp_path, total_steps=20), make_env=lambda: toy_env(budget_seconds=2.0))


CLOCK = ModelClock(compute_seconds=0.01, mbit_per_s=10.0)


def test_a_workload_that_was_edited_is_told_where_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code cannot be compared as its settings are, whose defaults are."""

    def edit(width: int, comment: str = "") -> None:
        text = "import dataclasses, faulty\n\n@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        text += f"class Edited(faulty.Faulty):\n    width: int = {width}{comment}\n"
        (tmp_path / "edited.py").write_text(text)

    edit(8)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = {"workload": "edited:Edited", "simulated": True, "clock": CLOCK}
    config = config_for(tmp_path / "run", total_steps=2, env=env)
    train(config)
    edit(8, "  # as before")
    with pytest.warns(RuntimeWarning, match="module edited has changed since"):
        train(dataclasses.replace(config, total_steps=3), resume=True)
    edit(16)
    importlib.reload(sys.modules["edited"])
    with pytest.raises(ValueError, match=r"workload_settings=.*'width': 8.*'width': 16"):
        train(dataclasses.replace(config, total_steps=4), resume=True)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown algorithm 'dqnn'"):
        train(config_for(tmp_path / "typo", algo="dqnn"), make_env=toy_env)
    assert not (tmp_path / "typo").exists()
    with pytest.raises(ValueError, match=r"'sac' with .* on Discrete.* is refused"):
        train(config_for(tmp_path, algo="sac"), make_env=toy_env)
    with pytest.raises(ValueError, match="the action is 'absolute'"):
        train(config_for(tmp_path, algo="sarsa"), make_env=toy_env)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        train(config_for(tmp_path / "new"), resume=True, make_env=toy_env)
    train(config_for(tmp_path / "ppo", algo="ppo", total_steps=64), make_env=toy_env)
    with pytest.raises(ValueError, match="run with algo='ppo' and cannot go on with 'dqn'"):
        train(config_for(tmp_path / "ppo"), resume=True, make_env=toy_env)
    with pytest.raises(ValueError, match="nothing says when to stop"):
        config_for(tmp_path, total_steps=None)
    with pytest.raises(ValueError, match=r"checkpoint_every must be a whole number .*, not 0"):
        config_for(tmp_path, checkpoint_every=0)
    for seed in (1.5, -1, None):
        with pytest.raises(ValueError, match=f"seed must be an integer from 0 .*, not {seed}"):
            config_for(tmp_path, seed=seed)
    for wrong, message in (({"gama": 0.5}, "'gama'"), ({"n_steps": 1, "batch_size": 1}, "greater than 1")):
        with pytest.raises(ValueError, match=f"'ppo' with .* is refused: .*{message}"):
            train(config_for(tmp_path / "new", algo="ppo", hyperparameters=wrong), make_env=toy_env)


def test_any_sb3_algorithm_with_discrete_actions_trains(tmp_path: Path) -> None:
    model = algorithm_class("a2c").load(
        train(config_for(tmp_path, algo="A2C", total_steps=20), make_env=toy_env)
    )
    assert model.num_timesteps == 20


def test_a_configuration_survives_json(tmp_path: Path) -> None:
    config = config_for(tmp_path, env={"link_mbit_per_s": [10, 100]}, hyperparameters={"gamma": 0.5})
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json") == config
    config.env["workload"] = object()
    with pytest.raises(ValueError, match="make_env"):
        config.save(tmp_path / "config.json")


def test_actions_are_repeated_on_policy_only_and_checkpoints_keep_their_distance(tmp_path: Path) -> None:
    config = config_for(tmp_path, algo="ppo", total_steps=40, action_repeat=4, checkpoint_every=40)
    train(config, make_env=lambda: toy_env(max_steps=8))
    steps = sorted(int(path.name.removeprefix("step_")) for path in (tmp_path / "checkpoints").iterdir())
    assert steps[-1] == 64  # the rollout under way is finished
    assert all(step % 10 == 0 for step in steps[:-1])
    with pytest.raises(
        ValueError, match="action_repeat=2 needs an on-policy algorithm such as ppo, got 'dqn'"
    ):
        train(config_for(tmp_path / "dqn", action_repeat=2), make_env=lambda: pytest.fail("workers started"))
    with pytest.raises(ValueError, match="action_repeat must be a whole number of at least 1, not 0"):
        config_for(tmp_path, action_repeat=0)


def test_a_run_that_is_done_says_so_where_it_is_resumed(tmp_path: Path) -> None:
    train(config_for(tmp_path, total_steps=40), make_env=toy_env)
    with pytest.warns(
        RuntimeWarning, match="nothing is left to learn: .* has 40 decisions .*total_steps=40 counts"
    ):
        train(config_for(tmp_path, total_steps=40), resume=True, make_env=toy_env)


def test_a_network_that_cannot_be_exported_is_told_of_before_it_is_trained(tmp_path: Path) -> None:
    config = config_for(tmp_path, algo="a2c", total_steps=5)
    config.hyperparameters["policy_kwargs"] = {"net_arch": [2048, 2048]}
    with pytest.warns(RuntimeWarning, match="what is trained here cannot be exported: a network of .* bytes"):
        train(config, make_env=toy_env)
