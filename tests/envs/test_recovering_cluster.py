"""Workers that die or are interrupted, and whose they are to close."""

import contextlib
import copy

import gymnasium
import numpy as np
import pytest
from toy_cluster import CLOCK, ToyCluster

from mqgrad.envs import ENV_ID, BitWidthEnv
from mqgrad.trainers import Simulated, WorkerError


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


def test_where_workers_cannot_be_restarted_the_error_keeps_its_remedy(toy: ToyCluster) -> None:
    toy.can_restart = False  # as in a torchrun job
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    toy.error = WorkerError(1, "was killed", remedy="start the job again")
    with pytest.raises(WorkerError, match="rank 1 was killed; start the job again"):
        env.step(np.int64(0))
    toy.error = None
    env.reset()
    assert toy.restarts == 0


def test_a_mistake_costs_no_worker(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    toy.error = ValueError("no such width")
    with pytest.raises(ValueError, match="no such width"):
        env.step(np.int64(0))
    toy.error = None
    env.reset()
    assert toy.restarts == 0


def test_an_interrupted_step_restarts_too(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    toy.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        env.step(np.int64(0))
    env.reset()
    assert toy.restarts == 1


def test_of_two_environments_on_one_cluster_the_other_has_to_begin_anew(toy: ToyCluster) -> None:
    """It went on in the run of the one that was reset last, and rewarded the difference between the two."""
    training, evaluation = BitWidthEnv(cluster=toy), BitWidthEnv(cluster=toy)
    training.reset(seed=0)
    training.step(np.int64(0))
    evaluation.reset(seed=1)
    evaluation.step(np.int64(0))
    del evaluation  # and its run is still what the cluster is in
    with pytest.raises(gymnasium.error.ResetNeeded, match="another environment has begun an episode"):
        training.step(np.int64(0))
    training.reset()
    training.step(np.int64(0))
    assert toy.restarts == 0


def test_of_two_environments_on_one_cluster_each_restarts_what_the_other_has_lost_and_only_once(
    toy: ToyCluster,
) -> None:
    training, evaluation = BitWidthEnv(cluster=toy), BitWidthEnv(cluster=toy)
    training.reset(seed=0)
    toy.error = WorkerError(1, "was killed")
    with pytest.raises(WorkerError):
        training.step(np.int64(0))
    toy.error = None
    evaluation.reset(seed=1)
    training.reset()
    assert toy.restarts == 1


def test_what_an_environment_that_is_gone_has_lost_is_restarted(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset(seed=0)
    toy.error = WorkerError(1, "was killed")
    with pytest.raises(WorkerError):
        env.step(np.int64(0))
    del env
    BitWidthEnv(cluster=toy).reset()
    assert toy.restarts == 1


def test_a_reset_that_is_refused_leaves_the_run_of_another_environment(
    toy: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, other = BitWidthEnv(cluster=toy), BitWidthEnv(cluster=toy)
    env.reset(seed=0)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such compressor")

    monkeypatch.setattr(toy, "reset", refuse)
    with pytest.raises(ValueError, match="no such compressor"):
        other.reset()
    env.step(np.int64(0))


def test_an_environment_on_a_cluster_has_a_spec() -> None:
    """Gymnasium copies the arguments for it, and there is no copy of a run."""
    with contextlib.closing(Simulated("logreg", clock=CLOCK)) as cluster:
        env = gymnasium.make(ENV_ID, cluster=cluster)
        env.reset(seed=0)
        assert env.spec is not None
        assert env.spec.kwargs["cluster"] is cluster


def test_a_copy_of_an_environment_begins_anew_on_workers_of_its_own() -> None:
    env = BitWidthEnv(workload="logreg", simulated=True, clock=CLOCK)
    env.reset(seed=0)
    other = copy.deepcopy(env)
    with pytest.raises(gymnasium.error.ResetNeeded, match="this one is a copy"):
        other.step(np.int64(0))
    other.reset(seed=1)
    other.close()
    assert env.step(np.int64(0))[4]["iteration"] == 7
    env.close()


class OwnCluster(ToyCluster):
    """Counts restarts of all."""

    all_restarts = 0

    def restart(self) -> None:
        super().restart()
        OwnCluster.all_restarts += 1


def test_new_workers_are_not_restarted_for_what_the_closed_ones_had(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[OwnCluster] = []
    monkeypatch.setattr(
        "mqgrad.envs.recovering_cluster._open_cluster", lambda _: started.append(OwnCluster()) or started[-1]
    )
    env = BitWidthEnv()
    env.reset(seed=0)
    started[0].error = WorkerError(1, "was killed")
    with pytest.raises(WorkerError):
        env.step(np.int64(0))
    env.close()
    env.reset()
    assert (len(started), OwnCluster.all_restarts) == (2, 0)


def test_close_twice_leaves_a_given_cluster_open(toy: ToyCluster) -> None:
    env = BitWidthEnv(cluster=toy)
    env.reset()
    env.close()
    env.close()
    assert toy.closes == 0
