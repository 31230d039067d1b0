"""What a run leaves behind besides its result."""

import contextlib
import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_cluster import CLOCK, ToyCluster

from mqgrad.agents.config import TrainConfig
from mqgrad.experiments.ranks import open_cluster
from mqgrad.experiments.recorded_run import check_run
from mqgrad.experiments.runs import PARTS, RunPoint
from mqgrad.experiments.tensorboard_log import TensorBoardLog
from mqgrad.experiments.training import train_policy


def point(iteration: int, seconds: float, mebibytes: float) -> RunPoint:
    return RunPoint(
        iteration=iteration,
        elapsed_seconds=seconds,
        bits=4,
        train_loss=1.0,
        heldout={"loss": 2.0, "accuracy": 0.5},
        wire_bytes=mebibytes * 2**20,
        parts=dict.fromkeys(PARTS, seconds / 4),
    )


def test_tensorboard_shows_what_an_iteration_takes_under_the_tags_of_training(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    for each in (point(5, 10.0, 10.0), point(15, 30.0, 15.0)):
        log.write(each)
    log.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found["mqgrad/wire_mib"] == [(5, 2.0), (15, 0.5)]
    assert found["mqgrad/elapsed_seconds"] == [(5, 10.0), (15, 30.0)]
    assert found["mqgrad/loss"] == [(5, 1.0), (15, 1.0)]
    assert {f"mqgrad/heldout_{name}" for name in ("loss", "accuracy")} < set(found)
    for part in PARTS:
        assert found[f"mqgrad/{part}_seconds"] == [(5, 0.5), (15, 0.5)]


def test_a_second_run_in_a_folder_takes_the_place_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (5, 7):
        # Logs are read in the order of their names: the second, then a number, of which 10 would come before 9.
        monkeypatch.setattr(time, "time", lambda second=first: 1e9 + second)
        log = TensorBoardLog(tmp_path)
        log.write(point(first, 10.0, 10.0))
        log.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("mqgrad/loss")] == [7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record": Path("/nowhere/record.json")}, "there is no folder /nowhere"),
        ({"record": Path("/tmp")}, "/tmp is a folder"),
        ({"record": Path("/proc/record.json")}, "cannot write to /proc"),
        ({"tensorboard": Path("/proc/logs")}, "cannot write to /proc/logs"),
        ({"budget_seconds": float("nan")}, "budget_seconds must be a finite number above 0, not nan"),
        ({"budget_seconds": -1.0}, "budget_seconds must be a finite number above 0, not -1"),
    ],
)
def test_a_mistake_is_named_before_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises((OSError, ValueError), match=message):
        check_run(**{**dict.fromkeys(("budget_seconds", "tensorboard", "record")), **options})


@pytest.mark.parametrize("torchrun", [False, True])
def test_ranks_have_the_timeout_that_is_asked_for(torchrun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder(contextlib.nullcontext[dict[str, Any]]):
        def __init__(self, *_: Any, **settings: Any) -> None:
            super().__init__(settings)

        from_torchrun = classmethod(lambda cls, *_, **settings: cls(**settings))

    monkeypatch.setattr("mqgrad.experiments.ranks.Distributed", Recorder)
    monkeypatch.setattr("mqgrad.experiments.ranks.under_torchrun", lambda: torchrun)
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with open_cluster("digits-mlp", {}, 2, 300.0) as cluster:
        settings: Any = cluster if not torchrun else cluster.enter_result
    assert settings["timeout_seconds"] == 300.0


def test_ranks_that_learn_nothing_do_without_stable_baselines(tmp_path: Path) -> None:
    names = ("cli", "ranks", "recorded_run", "oracle", "sweep.run_server", "bench.ranks")
    imports = ", ".join(f"mqgrad.experiments.{name}" for name in names)
    script = f"import sys, {imports}; sys.exit('stable_baselines3' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.parametrize("saved", [{}, {"workload": "digits-mlp", "clock": dataclasses.asdict(CLOCK)}])
def test_a_torchrun_job_trains_on_as_many_workers_as_it_has_ranks(
    saved: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, opened, trained = ToyCluster(), [], []
    cluster.world_size, cluster.clock = 4, CLOCK if saved else None

    def open_toy(*arguments: Any) -> contextlib.AbstractContextManager[ToyCluster]:
        opened.append(arguments)
        return contextlib.nullcontext(cluster)

    def record(config: TrainConfig, *, resume: bool, make_env: Any) -> None:
        trained.append((config.env, make_env().unwrapped.settings))

    monkeypatch.setattr("mqgrad.experiments.training.under_torchrun", lambda: True)
    monkeypatch.setattr("mqgrad.experiments.training.open_cluster", open_toy)
    monkeypatch.setattr("mqgrad.experiments.training.train", record)
    train_policy(TrainConfig(output=tmp_path, total_steps=1, env=saved), resume=True)
    [(workload, _, _, _, clock)], [(env, settings)] = opened, trained
    assert workload == settings.workload == saved.get("workload", "digits-cnn")
    assert clock == settings.clock == (CLOCK if saved else None)
    assert env["num_workers"] == settings.num_workers == 4
