"""The environment around a toy cluster with known dynamics, and around a real one."""

import math
import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

import mqgrad.envs
from mqgrad.envs import BitWidthEnv, authors
from mqgrad.policy import FrozenPolicy
from mqgrad.statistics import IntervalStatistics
from mqgrad.trainers import Distributed, LinkEmulation, ModelClock, Simulated, WorkerError

CLOCK = ModelClock(compute_seconds=0.01, mbit_per_s=10.0)


class ToyCluster:
    """Loss falls 1 % an iteration at any width, with noise from the seed; seconds are proportional to bits."""

    world_size = 2
    workload: Any = None
    clock: ModelClock | None = None

    def __init__(self) -> None:
        self.resets: list[tuple[int, LinkEmulation | None]] = []
        self.restarts = self.closes = 0
        self.scale = 0.99
        self.error: BaseException | None = None

    def reset(self, seed: int, *, link: LinkEmulation | None = None, **_: Any) -> None:
        self.resets.append((seed, link))
        self.rng = np.random.default_rng(seed)
        self.loss, self.iteration = 2.0 + self.rng.random(), 0

    def run(self, iterations: int, bits: int | None = None) -> IntervalStatistics:
        if self.error is not None:
            raise self.error
        assert bits is not None
        losses = []
        for _ in range(iterations):
            self.loss *= self.scale + 0.001 * self.rng.random()
            losses.append(self.loss)
        self.iteration += iterations
        return IntervalStatistics(
            iteration=self.iteration,
            bits=bits,
            world_size=2,
            losses=tuple(losses),
            step_seconds=0.01 + 0.001 * bits,
            compute_seconds=0.01,
            encode_seconds=0.0,
            wire_seconds=0.001 * bits,
            decode_seconds=0.0,
            wire_bytes=1000.0 * bits,
            gradient_signal=1.0,
            gradient_noise=2.0,
            peak_energy=30.0,
        )

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.loss}

    def restart(self) -> None:
        self.error = None
        self.restarts += 1

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def toy() -> ToyCluster:
    return ToyCluster()


def play(
    env: BitWidthEnv, action: int, steps: int = 10_000, **reset: Any
) -> tuple[list[float], list[dict[str, Any]]]:
    """Rewards and infos of an episode with one action throughout; the first info is that of reset."""
    rewards, infos = [], [env.reset(**reset)[1]]
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(np.int64(action))
        rewards.append(reward)
        infos.append(info)
        if terminated or truncated:
            break
    return rewards, infos


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


def test_max_steps_truncates(toy: ToyCluster) -> None:
    assert len(play(BitWidthEnv(cluster=toy, budget_seconds=None, max_steps=4), 0)[0]) == 4


@pytest.mark.parametrize("scale", [math.nan, math.inf, 3.0])
def test_divergence_terminates_with_the_penalty(toy: ToyCluster, scale: float) -> None:
    env = BitWidthEnv(cluster=toy, divergence_penalty=7.0)
    env.reset(seed=0)
    toy.scale = scale
    observation, reward, terminated, truncated, _ = env.step(np.int64(0))
    assert (reward, terminated, truncated) == (-7.0, True, False)
    assert observation in env.observation_space


def test_divergence_in_the_opening_interval_terminates_at_the_first_step(toy: ToyCluster) -> None:
    toy.scale = math.inf
    env = BitWidthEnv(cluster=toy)
    assert env.reset(seed=0)[0] in env.observation_space
    assert env.step(np.int64(0))[2]


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
    assert authors()["widths"] == (2, 3, 4, 5, 6, 7, 8)


def test_arguments_win_over_the_preset(toy: ToyCluster) -> None:
    settings = BitWidthEnv(preset="authors", cluster=toy, max_steps=7).settings
    assert (settings.max_steps, settings.reward) == (7, "authors")


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


def test_modelled_seconds_are_labelled(toy: ToyCluster) -> None:
    assert BitWidthEnv(cluster=toy).reset()[1]["modelled"] is False
    assert BitWidthEnv(cluster=toy, clock=CLOCK).reset()[1]["modelled"] is True
    toy.clock = CLOCK
    assert BitWidthEnv(cluster=toy).reset()[1]["modelled"] is True


def test_a_frozen_policy_sees_and_does_what_the_agent_would(toy: ToyCluster) -> None:
    """The environment's observation and the deployed controller's are the same vector."""
    env = BitWidthEnv(cluster=toy, budget_seconds=1.0)
    schema = env.settings.schema
    weight, bias = torch.zeros(len(schema.widths), schema.size), torch.zeros(len(schema.widths))
    weight[0, -2], weight[6, -1], bias[5] = 1.0, 1.0, 0.3  # moved by the width in use and by progress
    policy = FrozenPolicy(schema=schema, layers=[(weight, bias)], budget_seconds=1.0)
    other = ToyCluster()
    observation, _ = env.reset(seed=3)
    other.reset(toy.resets[-1][0])
    bits = policy.decide(other.run(2, bits=4))
    done, seen = False, set()
    while not done:
        observation, _, _, done, info = env.step(np.int64(policy.act(observation)))
        assert info["bits"] == bits
        seen.add(bits)
        bits = policy.decide(other.run(5, bits=bits))
    assert seen == {1, 8, 16}


class Recording(FrozenPolicy):
    """Remembers what it observes."""

    def act(self, observation: np.ndarray, bits: float | None = None) -> int:
        _OBSERVED.append(observation)
        return super().act(observation, bits)


_OBSERVED: list[np.ndarray] = []  # each rank decides with a copy of the policy


def test_the_first_decision_sees_what_the_first_step_of_an_episode_saw() -> None:
    arguments = {"workload": "digits-mlp", "clock": CLOCK, "interval": 3, "budget_seconds": 0.5}
    env = BitWidthEnv(simulated=True, **arguments)
    schema, settings = env.settings.schema, env.settings
    layer = torch.randn(len(schema.widths), schema.size, generator=torch.Generator().manual_seed(0))
    policy = Recording(
        schema=schema,
        layers=[(layer, torch.zeros(len(schema.widths)))],
        interval=settings.interval,
        opening=settings.opening,
        initial_bits=settings.first_bits,
        budget_seconds=settings.budget_seconds,
    )
    trained, infos = [], []
    observation, info = env.reset(seed=3)
    for _ in range(3):
        trained.append(observation)
        observation, _, _, _, info = env.step(np.int64(policy.act(observation)))
        infos.append(info)
    training_seed = int(np.random.default_rng(3).integers(2**31))
    env.close()
    _OBSERVED.clear()
    with Simulated("digits-mlp", clock=CLOCK) as cluster:
        cluster.reset(training_seed, controller=policy)
        assert [cluster.run(n).bits for n in (2, 3, 3, 3)] == [4, *(info["bits"] for info in infos)]
    deployed = _OBSERVED[:6:2]  # of two ranks
    np.testing.assert_array_equal(deployed[0], trained[0])
    np.testing.assert_allclose(deployed, trained, atol=0.05)  # later ones count the bytes of deciding


def test_lost_worker_is_reported_and_reset_restarts(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    toy.error = WorkerError(1, "was killed")
    with pytest.raises(WorkerError, match=r"rank 1 was killed.*env\.reset\(\)"):
        env.step(np.int64(0))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))
    env.reset()
    assert toy.restarts == 1
    env.step(np.int64(0))
    env.reset()
    assert toy.restarts == 1


def test_an_interrupted_step_restarts_too(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    toy.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        env.step(np.int64(0))
    env.reset()
    assert toy.restarts == 1


def test_render_ansi(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy, render_mode="ansi")
    env.reset(seed=0)
    assert "4 bits" in (env.render() or "")
    assert BitWidthEnv(cluster=toy).render() is None


def test_close_twice_leaves_a_given_cluster_open(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset()
    env.close()
    env.close()
    assert toy.closes == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workload": "digits-rnn"}, "digits-rnn.*digits-cnn"),
        ({"workload_settings": {"depth": 3}}, "depth"),
        ({"preset": "paper"}, "'paper'.*authors"),
        ({"observation": "all"}, "observation 'all'.*full, loss, authors"),
        ({"action": "relative"}, "action 'relative'.*keep-or-increase"),
        ({"reward": "loss"}, "reward 'loss'.*log-loss"),
        ({"widths": (2, 9)}, "9"),
        ({"widths": (4, 2)}, "increasing"),
        ({"widths": ()}, "non-empty"),
        ({"initial_bits": 5}, "5"),
        ({"num_workers": 0}, "num_workers 0"),
        ({"interval": 2.5}, r"interval 2\.5"),
        ({"opening": 0}, "opening 0"),
        ({"budget_seconds": -1}, "budget_seconds -1"),
        ({"budget_seconds": None}, "max_steps"),
        ({"link_mbit_per_s": 0}, "link_mbit_per_s 0"),
        ({"link_mbit_per_s": (100, 10)}, r"\(100, 10\)"),
        ({"link_mbit_per_s": (1, 2, 3)}, r"\(1, 2, 3\)"),
        ({"link_mbit_per_s": "100"}, "'100'"),
        ({"link_latency_ms": -1}, "link_latency_ms -1"),
        ({"discount_per_second": 1.5}, r"discount_per_second 1\.5"),
        ({"simulated": True}, "simulated=True needs a clock"),
        ({"clock": "modelled"}, "clock 'modelled'.*ModelClock"),
        ({"timeout_seconds": math.nan}, "timeout_seconds nan"),
        ({"render_mode": "human"}, "render_mode 'human'"),
        ({"bits": 4}, "unknown argument bits"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BitWidthEnv(**arguments)


def test_wrong_action_is_named(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset()
    with pytest.raises(ValueError, match=r"99.*0 to 7"):
        env.step(np.int64(99))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Distributed]:
    with Distributed("digits-mlp", num_workers=2, clock=CLOCK) as cluster:
        yield cluster


def test_real_cluster_repeats_under_a_modelled_clock(cluster: Distributed) -> None:
    env = BitWidthEnv(cluster=cluster, budget_seconds=2.0)
    first = play(env, 2, steps=5, seed=1)
    assert play(env, 2, steps=5, seed=1) == first
    assert first[1][-1]["loss"] < first[1][0]["loss"]


def test_the_authors_preset_trains_with_their_quantizer(cluster: Distributed) -> None:
    assert authors()["compressor"] == "minmax"
    env = BitWidthEnv(preset="authors", cluster=cluster, compressor="minmax:min_numel=60000", max_steps=6)
    _, infos = play(env, 1, seed=1)
    assert [info["bits"] for info in infos] == [2, 3, 4, 5, 6, 7, 8]
    wire_bytes = [info["wire_bytes"] for info in infos]
    per_bit = np.diff(wire_bytes)  # two matrices of 65,536 elements are coded, pushed and pulled
    np.testing.assert_allclose(per_bit, 2 * 65536 / 8, rtol=0.02)
    assert infos[-1]["loss"] < infos[0]["loss"]


def test_an_episode_on_the_simulated_cluster_is_that_of_real_workers(cluster: Distributed) -> None:
    real = play(BitWidthEnv(cluster=cluster, budget_seconds=2.0, link_mbit_per_s=30), 2, steps=5, seed=1)
    arguments = {"workload": "digits-mlp", "clock": CLOCK, "budget_seconds": 2.0, "link_mbit_per_s": 30}
    with gymnasium.make("mqgrad/BitWidth-v0", simulated=True, **arguments) as env:
        assert play(env.unwrapped, 2, steps=5, seed=1) == real


def test_real_cluster_passes_both_checkers(cluster: Distributed) -> None:
    env = BitWidthEnv(cluster=cluster, budget_seconds=2.0)
    gymnasium_check(env, skip_render_check=True)
    sb3_check(env)


def test_own_workers_measured_seconds_and_a_killed_worker() -> None:
    with BitWidthEnv(workload="digits-mlp", link_mbit_per_s=50.0, budget_seconds=1.0) as env:
        _, infos = play(env, 4, seed=0)
        assert infos[-1]["elapsed_seconds"] >= 1.0
        assert infos[-1]["loss"] < infos[0]["loss"]
        assert infos[-1]["wire_seconds"] > 0
        env.reset()
        assert isinstance(env._cluster, Distributed)
        os.kill(env._cluster.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match="rank 1"):
            env.step(np.int64(0))
        play(env, 4, steps=2)
