"""The environment around a toy cluster with known dynamics: spaces, rewards, ends, links and infos."""

import contextlib
import math
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from gymnasium.wrappers import PassiveEnvChecker
from stable_baselines3.common.env_checker import check_env as sb3_check
from toy_cluster import CLOCK, ToyCluster, play

import mqgrad.envs
from mqgrad.envs import BitWidthEnv
from mqgrad.envs.settings import PRESETS
from mqgrad.trainers import LinkEmulation, ModelClock, Simulated


@pytest.mark.parametrize("observation", ["full", "loss", "authors"])
@pytest.mark.parametrize("action", ["absolute", "keep-or-increase"])
def test_both_checkers_pass_without_warnings(toy: ToyCluster, observation: str, action: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Gymnasium suggests an infinite or symmetric Box, and a spec that only `make` can give.
        warnings.filterwarnings("ignore", message=".*(Box observation space|spec).*")
        env = BitWidthEnv(cluster=toy, observation=observation, action=action)
        gymnasium_check(env, skip_render_check=True)
        sb3_check(env)


def test_registered_on_import(toy: ToyCluster) -> None:
    env = gymnasium.make(mqgrad.envs.ENV_ID, cluster=toy, max_steps=3)
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    assert isinstance(env.unwrapped, BitWidthEnv)
    env.close()


def test_the_ranks_of_a_given_cluster_are_the_workers(toy: ToyCluster) -> None:
    toy.world_size = 4
    assert BitWidthEnv(cluster=toy).settings.num_workers == 4


def test_same_seed_same_trajectory(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, link_mbit_per_s=(10.0, 1000.0))
    first = play(env, 3, seed=5)
    assert play(env, 3, seed=5) == first
    assert play(env, 3, seed=6) != first
    assert play(env, 3) != play(env, 3)


def test_return_telescopes_to_the_drop_within_the_budget(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, budget_seconds=1.0, initial_bits=8)
    rewards, infos = play(env, 2, seed=0)
    assert infos[-1]["elapsed_seconds"] > 1.0
    whole = math.log(infos[0]["loss"]) - math.log(infos[-2]["loss"])
    assert sum(rewards[:-1]) == pytest.approx(whole)
    inside = (1.0 - infos[-2]["elapsed_seconds"]) / (
        infos[-1]["elapsed_seconds"] - infos[-2]["elapsed_seconds"]
    )
    assert rewards[-1] == pytest.approx(inside * math.log(infos[-2]["loss"] / infos[-1]["loss"]))


def test_fewer_bits_get_further_when_they_cost_nothing(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, budget_seconds=1.0)
    assert sum(play(env, 0, seed=0)[0]) > sum(play(env, 7, seed=0)[0])


def test_spent_budget_truncates(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, budget_seconds=1.0, widths=(4, 8), initial_bits=8)
    env.reset(seed=0)  # 2 iterations of 18 ms
    ends = [env.step(np.int64(1))[2:4] for _ in range(11)]
    assert ends == [(False, False)] * 10 + [(False, True)]


def test_an_opening_that_uses_up_the_budget_is_warned_of_once(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, budget_seconds=0.02, initial_bits=8)
    with pytest.warns(
        RuntimeWarning, match=r"budget_seconds=0\.02 .* 2 iterations of the opening took 0\.036 s"
    ):
        env.reset(seed=0)
    assert env.step(np.int64(0))[1:4] == (0.0, False, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset()
        BitWidthEnv(cluster=toy, budget_seconds=0.04, initial_bits=8).reset()


def test_a_single_width_is_warned_of(toy: ToyCluster) -> None:
    with pytest.warns(RuntimeWarning, match=r"widths is \(4,\): there is nothing to choose"):
        BitWidthEnv(cluster=toy, widths=(4,))


def test_max_steps_truncates(toy: ToyCluster) -> None:
    assert len(play(BitWidthEnv(cluster=toy, max_steps=4), 0)[0]) == 4


@pytest.mark.parametrize("scale", [math.nan, math.inf, 3.0])
def test_divergence_terminates_with_the_penalty(toy: ToyCluster, scale: float) -> None:
    env = BitWidthEnv(cluster=toy, divergence_penalty=7.0)
    env.reset(seed=0)
    toy.scale = scale
    observation, reward, terminated, truncated, _ = env.step(np.int64(0))
    assert (reward, terminated, truncated) == (-7.0, True, False)
    assert observation in env.observation_space


@pytest.mark.parametrize("scale", [math.inf, 1e25])
def test_divergence_in_the_opening_interval_terminates_at_the_first_step(
    toy: ToyCluster, scale: float
) -> None:
    """One that was still finite ended the training of an agent, hours into it."""
    toy.scale = scale
    env = BitWidthEnv(cluster=toy)
    with pytest.warns(
        RuntimeWarning, match=r"the loss of the opening is .*: such an episode ends with its first step"
    ):
        assert env.reset(seed=0)[0] in env.observation_space
    toy.scale = 1.0  # a fall from infinity is no reward
    assert env.step(np.int64(0))[2]


def test_a_loss_that_leaves_what_the_reward_knows_is_warned_of_once(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    toy.loss = -0.3  # as a Gaussian likelihood's after a while
    with pytest.warns(
        RuntimeWarning, match=r"training loss is -0\.29.*between 1e-06 and 1e\+18 only.*Add a constant"
    ):
        env.step(np.int64(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert env.step(np.int64(0))[1] == 0.0
        BitWidthEnv(preset="authors", cluster=toy).reset()


def test_absolute_actions_are_widths(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, widths=(2, 5, 16), initial_bits=5)
    assert env.action_space.n == 3
    assert env.reset()[1]["bits"] == 5
    assert [env.step(np.int64(a))[4]["bits"] for a in (2, 0, 1)] == [16, 2, 5]


def test_keep_or_increase_clips_at_the_last_width(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, widths=(2, 3, 8), initial_bits=2, action="keep-or-increase")
    env.reset()
    assert [env.step(np.int64(a))[4]["bits"] for a in (0, 1, 0, 1, 1)] == [2, 3, 3, 8, 8]


def test_authors_preset(toy: ToyCluster) -> None:
    env = BitWidthEnv(preset="authors", cluster=toy)
    assert env.action_space.n == 2
    observation, info = env.reset(seed=0)
    assert observation.shape == (5,)
    assert info["bits"] == 2
    for action, bits in ((0, 2), (1, 3)):
        observation, reward, *_ = env.step(np.int64(action))
        slope = np.polyfit(np.arange(5), observation.astype(float), 1)[0]
        assert reward == pytest.approx(-300 * slope / (5 + 5 * bits), rel=1e-3)
    assert PRESETS["authors"]["widths"] == (2, 3, 4, 5, 6, 7, 8)


def test_the_authors_reward_is_of_five_losses_however_many_are_observed(toy: ToyCluster) -> None:
    env = BitWidthEnv(preset="authors", cluster=toy, history=9)
    env.reset(seed=0)
    observation, reward, *_ = env.step(np.int64(0))
    slope = np.polyfit(np.arange(5), observation[-5:].astype(float), 1)[0]
    assert reward == pytest.approx(-300 * slope / 15, rel=1e-3)


def test_link_range_is_sampled_log_uniformly(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, link_mbit_per_s=(10.0, 1000.0), link_latency_ms=2.0)
    rates = [env.reset(seed=0 if i == 0 else None)[1]["link_mbit_per_s"] for i in range(400)]
    assert 10 <= min(rates) < 12
    assert 850 < max(rates) <= 1000
    assert np.mean(np.log10(rates)) == pytest.approx(2.0, abs=0.1)
    assert toy.resets[-1][1] == LinkEmulation(mbit_per_s=rates[-1], latency_ms=2.0)


def test_reset_options_set_the_link(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, link_mbit_per_s=50.0)
    assert env.reset()[1]["link_mbit_per_s"] == 50.0
    assert env.reset(options={"link_mbit_per_s": 7.0})[1]["emulated"] is True
    assert toy.resets[-1][1] == LinkEmulation(mbit_per_s=7.0)
    info = env.reset(options={"link_mbit_per_s": None})[1]
    assert (info["link_mbit_per_s"], info["emulated"]) == (None, False)
    toy.clock = CLOCK
    info = BitWidthEnv(cluster=toy, link_mbit_per_s=50.0).reset()[1]
    assert (info["emulated"], info["modelled"]) == (False, True)
    with pytest.raises(ValueError, match="rate"):
        env.reset(options={"rate": 7.0})
    with pytest.raises(ValueError, match="-7"):
        env.reset(options={"link_mbit_per_s": -7.0})


def test_info_holds_plain_values(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    info = env.step(np.int64(0))[4]
    assert {type(value) for value in info.values()} <= {int, float, bool, str, type(None)}
    assert info["wire_bytes"] == 1000.0
    assert info["iteration"] == 7
    assert info["elapsed_seconds"] == pytest.approx(2 * 0.014 + 5 * 0.011)


def test_a_vector_environment_tells_widths_below_one() -> None:
    widths = {"widths": (1 / 4, 1, 4), "initial_bits": 1}
    makers = [lambda: BitWidthEnv(cluster=ToyCluster(), **widths) for _ in range(2)]
    envs = gymnasium.vector.SyncVectorEnv(makers)
    assert envs.reset(seed=0)[1]["bits"].tolist() == [1, 1]
    assert envs.step(np.array([2, 0]))[4]["bits"].tolist() == [4, 1 / 4]


def test_a_vector_environment_tells_rates_that_are_not_whole_and_where_there_is_none() -> None:
    rates = (20, 12.5, None)
    makers = [lambda rate=rate: BitWidthEnv(cluster=ToyCluster(), link_mbit_per_s=rate) for rate in rates]
    told = gymnasium.vector.SyncVectorEnv(makers).reset(seed=0)[1]["link_mbit_per_s"]
    np.testing.assert_array_equal(told, [20, 12.5, np.nan])


def test_a_vector_environment_tells_seconds_that_are_not_whole() -> None:
    clocks = [ModelClock(compute_seconds=seconds, mbit_per_s=10.0) for seconds in (1, 0.5)]
    makers = [
        lambda clock=clock: BitWidthEnv(workload="logreg", simulated=True, clock=clock) for clock in clocks
    ]
    with contextlib.closing(gymnasium.vector.SyncVectorEnv(makers)) as envs:
        assert envs.reset(seed=0)[1]["compute_seconds"].tolist() == [1, 0.5]


def test_modelled_seconds_are_labelled(toy: ToyCluster) -> None:
    assert BitWidthEnv(cluster=toy).reset()[1]["modelled"] is False
    with pytest.raises(ValueError, match="is not that of the cluster, None: leave it out"):
        BitWidthEnv(cluster=toy, clock=CLOCK)  # nobody would go by it
    toy.clock = CLOCK
    assert BitWidthEnv(cluster=toy).reset()[1]["modelled"] is True
    assert BitWidthEnv(cluster=toy, clock=CLOCK).reset()[1]["modelled"] is True


def test_settings_are_those_of_a_cluster_that_is_given() -> None:
    """They are what a policy tells of where it was trained, and what a run that is resumed is compared with."""
    with contextlib.closing(Simulated("logreg", {"batch_size": 8}, num_workers=3, clock=CLOCK)) as cluster:
        settings = BitWidthEnv(cluster=cluster).settings
        assert (settings.workload, settings.num_workers, settings.simulated) == ("logreg", 3, True)
        assert settings.workload_settings is not None
        assert settings.workload_settings["batch_size"] == 8
        assert settings.clock == cluster.clock
        assert BitWidthEnv(cluster=cluster, workload="logreg").settings.workload == "logreg"
        with pytest.raises(ValueError, match=r"workload 'digits-mlp' is not that of the cluster, 'logreg'"):
            BitWidthEnv(cluster=cluster, workload="digits-mlp")
        with pytest.raises(
            ValueError, match=r"workload_settings {'batch_size': 9} are not those of the cluster"
        ):
            BitWidthEnv(cluster=cluster, workload="logreg", workload_settings={"batch_size": 9})
        for other in ({"batch_size": 9}, {"depth": 9}):
            with pytest.raises(ValueError, match=f"workload_settings {other} are not those of the cluster"):
                BitWidthEnv(cluster=cluster, workload_settings=other)
        BitWidthEnv(cluster=cluster, workload_settings={"batch_size": 8})


def test_numbers_of_numpy_are_taken_as_plain_ones(toy: ToyCluster) -> None:
    """Its generators draw them, and JSON, which a policy's provenance is kept in, has none."""
    widths = np.arange(2, 5)
    env = BitWidthEnv(cluster=toy, interval=np.int64(5), budget_seconds=np.float32(0.5), widths=widths)
    assert [type(bits) for bits in env.settings.widths] == [int] * 3
    assert type(env.settings.interval) is int
    assert type(env.settings.budget_seconds) is float
    info = env.reset(options={"link_mbit_per_s": np.int64(7)})[1]
    assert info["link_mbit_per_s"] == 7


def test_nothing_is_trained_after_the_end_of_an_episode(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, max_steps=1)
    env.reset(seed=0)
    assert env.step(np.int64(0))[3]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))


def test_a_latency_without_a_rate_is_refused_and_a_clocks_own_stays(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, link_latency_ms=50.0)
    with pytest.raises(ValueError, match=r"link_latency_ms=50\.0 is of an emulated link: give its rate too"):
        env.reset(seed=0)
    env.reset(options={"link_mbit_per_s": 10.0})
    assert toy.resets[-1][1] == LinkEmulation(mbit_per_s=10.0, latency_ms=50.0)


def test_the_model_of_an_episode_is_evaluated_on_held_out_data(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.evaluate()
    env.reset()
    before = env.evaluate()["loss"]
    env.step(np.int64(0))
    assert env.evaluate()["loss"] == toy.loss < before
    BitWidthEnv(cluster=toy).reset()
    with pytest.raises(gymnasium.error.ResetNeeded, match="another environment"):
        env.evaluate()


def test_render_ansi(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, render_mode="ansi")
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "4 bits" in (PassiveEnvChecker(env).render() or "")  # as of gymnasium.make
    assert BitWidthEnv(cluster=toy).render() is None


def test_wrong_action_is_named(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset()
    with pytest.raises(ValueError, match=r"99.*0 to 7"):
        env.step(np.int64(99))


def test_widths_that_send_the_same_bytes_are_warned_of_once(toy: ToyCluster) -> None:
    """As minmax does of a model with small parameters only."""
    env = BitWidthEnv(cluster=toy, widths=(4, 8), initial_bits=8)
    env.reset(seed=0)
    toy.bytes_per_bit = 0.0
    env.step(np.int64(0))
    with pytest.warns(RuntimeWarning, match="at 4 and at 8 bits send equally many bytes, 500: .*min_numel"):
        env.step(np.int64(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.step(np.int64(0))
