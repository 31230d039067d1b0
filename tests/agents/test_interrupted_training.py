"""What ends the training of an agent before its limits: Ctrl-C, SIGTERM, a terminal that is gone."""

import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN
from toy_env import toy_env
from toy_training import config_for, tags
from tqdm import tqdm

from mqgrad.agents import callbacks
from mqgrad.agents.checkpoint import latest_checkpoint, load_model
from mqgrad.agents.train import train
from mqgrad.trainers.clusters.errors import WorkerError


@pytest.mark.timeout(240)
def test_an_interrupted_run_leaves_a_checkpoint_and_no_process(tmp_path: Path) -> None:
    config = config_for(
        tmp_path,
        total_steps=10**6,
        checkpoint_every=10**6,
        env={
            "workload": "digits-mlp",
            "budget_seconds": 20.0,
            "clock": {"compute_seconds": 0.1, "mbit_per_s": 10.0},
        },
    )
    config.save(tmp_path / "wanted.json")
    script = (
        "import sys; from pathlib import Path; from mqgrad.agents.config import TrainConfig;"
        "from mqgrad.agents.train import train; train(TrainConfig.load(Path(sys.argv[1])))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "wanted.json")],
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    try:
        wait_for_steps(tmp_path, child)
        # As a terminal does on Ctrl-C: the whole foreground group gets the signal, the workers too.
        os.killpg(child.pid, signal.SIGINT)
        errors = child.communicate(timeout=60)[1].decode()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        raise
    assert child.returncode == -signal.SIGINT, errors
    assert "stopping after the decision under way; once more stops at once" in errors
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert {path.name for path in checkpoint.iterdir()} == {
        "model.zip",
        "replay_buffer.pkl",
        "random_states.pt",
        "progress.json",
    }
    assert members_of_session(child.pid) == []


def test_a_signal_that_workers_do_not_outlive_leaves_what_was_learned(tmp_path: Path) -> None:
    """As SIGTERM to the whole group of processes does: that workers die of it is no failure of theirs."""

    def interrupted() -> gymnasium.Env:
        env = toy_env()
        steps = [env.step] * 3

        def step(action: np.int64) -> Any:
            if not steps:
                os.kill(os.getpid(), signal.SIGTERM)
                raise WorkerError(1, "was killed by SIGTERM")
            return steps.pop()(action)

        env.step = step  # type: ignore[method-assign]
        return env

    with pytest.raises(SystemExit, match="143"):
        train(config_for(tmp_path), make_env=interrupted)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step_00000003"
    assert load_model(tmp_path / "model.zip", DQN).num_timesteps == 3


@pytest.mark.parametrize(
    ("number", "stopped"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_run_that_is_interrupted_before_its_first_decision_leaves_no_model(
    tmp_path: Path, number: int, stopped: type[BaseException]
) -> None:
    def interrupting() -> gymnasium.Env:
        os.kill(os.getpid(), number)
        return toy_env()

    with pytest.raises(stopped):
        train(config_for(tmp_path), make_env=interrupting)
    assert not (tmp_path / "model.zip").exists()
    assert train(config_for(tmp_path, total_steps=5), make_env=toy_env).exists()  # the folder is free


class GonePipe(io.StringIO):
    """A standard error whose reader leaves after the first words, as ``head`` does."""

    def write(self, text: str) -> int:
        if self.tell() > 0:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return super().write(text)


def test_a_progress_bar_that_nobody_reads_any_more_costs_nothing_that_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", GonePipe())
    always = {"mininterval": 0, "miniters": 1}
    monkeypatch.setattr(callbacks, "tqdm", lambda **given: tqdm(**given | always))
    train(config_for(tmp_path, total_steps=5, progress_bar=True), make_env=toy_env)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step_00000005"
    assert load_model(tmp_path / "model.zip", DQN).num_timesteps == 5


def wait_for_steps(folder: Path, child: subprocess.Popen) -> None:
    deadline = time.monotonic() + 150  # starting takes long on a busy machine
    while time.monotonic() < deadline and child.poll() is None:
        if (folder / "tensorboard").exists() and "mqgrad/bits" in tags(folder / "tensorboard").Tags()[
            "scalars"
        ]:
            return
        time.sleep(0.5)
    child.kill()
    raise AssertionError("no step was logged: " + child.communicate()[1].decode())


def members_of_session(leader: int) -> list[int]:
    """Processes whose session is led by ``leader``, from /proc/PID/stat (field 6, after the name in brackets)."""
    members = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            members.append(int(entry.parent.name))
    return members
