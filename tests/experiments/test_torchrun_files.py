"""In a torchrun job on several hosts only rank 0's disk has the files that the command line names."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from stable_baselines3 import DQN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mqgrad.agents.checkpoint import load_model

POLICY = Path(__file__).parents[2] / "mqgrad" / "policies" / "default.mqg"
SCRIPT = """
import os
import sys
from mqgrad.experiments.cli import main

rank = os.environ["RANK"]
os.chdir(sys.argv[1] + rank)
digits = ["--workload", "digits-mlp", "--set", "width=16"]
for arguments in (
    ["run", *digits, "--controller", "policy.mqg", "--iterations", "6", "--record", "record.json"],
    ["train", "learned", *digits, "--algo", "dqn", "--warm-start", "none", "--budget-seconds", "0.2"]
    + ["--total-steps", "12"],
    ["train", "learned", "--resume", "--total-steps", "15"],
    ["train", "nowhere", "--resume"],
    ["run", "--controller", "missing.mqg"],
):
    sys.argv = ["mqgrad", *arguments]
    try:
        main()
    except SystemExit as stopped:
        with open("ended", "a") as file:  # not to the output, where ranks cut into each other's lines
            print(*arguments[:2], int(stopped.code or 0), file=file)
"""


LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200"}


def torchrun(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """A job of two ranks, which has to end well."""
    job = subprocess.run(
        [*LAUNCHER, *arguments], capture_output=True, text=True, timeout=100, check=False, env=ENVIRONMENT
    )
    assert job.returncode == 0, job.stderr
    return job


def test_a_training_that_is_asked_to_end_saves_what_it_has_learned(tmp_path: Path) -> None:
    digits = ["--workload", "digits-mlp", "--set", "width=16", "--algo", "dqn", "--budget-seconds", "0.2"]
    digits += ["--warm-start", "none"]
    job = subprocess.Popen(
        [*LAUNCHER, "-m", "mqgrad", "train", "learned", *digits, "--total-steps", "1000000"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not has_logged_a_decision(tmp_path / "learned" / "tensorboard"):
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        job.terminate()
        assert job.wait(25) != 0  # before torchrun's patience ends, after 30 s
    finally:
        job.kill()
    assert load_model(tmp_path / "learned" / "model.zip", DQN).num_timesteps > 0


def has_logged_a_decision(folder: Path) -> bool:
    if not folder.exists():
        return False
    events = EventAccumulator(str(folder))
    events.Reload()
    return "mqgrad/bits" in events.Tags()["scalars"]


def test_only_rank_0_of_a_torchrun_job_reads_files(tmp_path: Path) -> None:
    host0, host1 = tmp_path / "host0", tmp_path / "host1"
    host0.mkdir()
    host1.mkdir()
    shutil.copy(POLICY, host0 / "policy.mqg")
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    job = torchrun(str(script), str(tmp_path / "host"))
    for host in (host0, host1):
        ended = [line.split() for line in (host / "ended").read_text().splitlines()]
        assert [(f"{command} {what}", int(code)) for command, what, code in ended] == [
            ("run --workload", 0),
            ("train learned", 0),
            ("train learned", 0),
            ("train nowhere", 2),
            ("run --controller", 2),
        ], job.stderr
    for message in ("nowhere holds no run to resume", "missing.mqg"):
        assert message in job.stderr
    assert "rank 0 could not begin" in job.stderr
    assert json.loads((host0 / "record.json").read_text())["outcome"] == "finished"
    assert list(host1.iterdir()) == [host1 / "ended"]
