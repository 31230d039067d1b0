"""The environment around real workers, and around the simulated cluster that stands in for them."""

import os
import signal
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check
from toy_cluster import CLOCK, play

from mqgrad.envs import BitWidthEnv
from mqgrad.envs.settings import PRESETS
from mqgrad.trainers import Distributed, WorkerError


@pytest.fixture(scope="module")
def modelled() -> Iterator[Distributed]:
    """Two real ranks under a modelled clock."""
    with Distributed("digits-mlp", num_workers=2, clock=CLOCK) as cluster:
        yield cluster


def test_real_cluster_repeats_under_a_modelled_clock(modelled: Distributed) -> None:
    env = BitWidthEnv(cluster=modelled, budget_seconds=2.0)
    first = play(env, 2, steps=5, seed=1)
    assert play(env, 2, steps=5, seed=1) == first
    assert first[1][-1]["loss"] < first[1][0]["loss"]


def test_the_authors_preset_trains_with_their_quantizer(modelled: Distributed) -> None:
    assert PRESETS["authors"]["compressor"] == "minmax"
    env = BitWidthEnv(preset="authors", cluster=modelled, compressor="minmax:min_numel=60000", max_steps=6)
    _, infos = play(env, 1, seed=1)
    assert [info["bits"] for info in infos] == [2, 3, 4, 5, 6, 7, 8]
    wire_bytes = [info["wire_bytes"] for info in infos]
    per_bit = np.diff(wire_bytes)  # two matrices of 65,536 elements are coded, pushed and pulled
    np.testing.assert_allclose(per_bit, 2 * 65536 / 8, rtol=0.02)
    assert infos[-1]["loss"] < infos[0]["loss"]


def test_an_episode_on_the_simulated_cluster_is_that_of_real_workers(modelled: Distributed) -> None:
    real = play(BitWidthEnv(cluster=modelled, budget_seconds=2.0, link_mbit_per_s=30), 2, steps=5, seed=1)
    arguments = {"workload": "digits-mlp", "clock": CLOCK, "budget_seconds": 2.0, "link_mbit_per_s": 30}
    with gymnasium.make("mqgrad/BitWidth-v0", simulated=True, **arguments) as env:
        assert play(env.unwrapped, 2, steps=5, seed=1) == real


def test_real_cluster_passes_both_checkers(modelled: Distributed) -> None:
    env = BitWidthEnv(cluster=modelled, budget_seconds=2.0)
    gymnasium_check(env, skip_render_check=True)
    sb3_check(env)


def test_a_step_may_be_rounds_of_local_iterations(cluster: Distributed) -> None:
    env = BitWidthEnv(cluster=cluster, period=3, interval=4, opening=2, max_steps=3)
    _, infos = play(env, 2, steps=3, seed=0)
    assert [info["iteration"] for info in infos] == [6, 18, 30, 42]
    assert infos[-1]["loss"] < infos[0]["loss"]


def test_own_workers_measured_seconds_and_a_killed_worker() -> None:
    with BitWidthEnv(workload="digits-mlp", link_mbit_per_s=50.0, budget_seconds=1.0) as env:
        _, infos = play(env, 4, seed=0)
        assert infos[-1]["elapsed_seconds"] >= 1.0
        assert infos[-1]["loss"] < infos[0]["loss"]
        assert infos[-1]["wire_seconds"] > 0
        env.reset()
        workers = env._cluster.cluster
        assert isinstance(workers, Distributed)
        os.kill(workers.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match="rank 1"):
            env.step(np.int64(0))
        play(env, 4, steps=2)
