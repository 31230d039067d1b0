"""A cluster made of the ranks of a real torchrun job."""

import socket
import subprocess
import sys
from pathlib import Path

import faulty
import pytest
import torch

from mqgrad.trainers import Distributed

SCRIPT = """
import os
import time
import faulty
import torch
from mqgrad.trainers import Distributed, WorkerError

fault, timeout_seconds = os.environ["FAULT"], float(os.environ["TIMEOUT_SECONDS"])

threads = set()
loss = faulty.Faulty.loss

def observed_loss(self, model, batch):
    threads.add(torch.get_num_threads())
    return loss(self, model, batch)

faulty.Faulty.loss = observed_loss
torch.set_num_threads(2)

def drive():
    torch.set_num_threads(1)  # as who learns does
    torch.manual_seed(5)
    cluster.reset(seed=3)
    statistics = cluster.run(4, bits=4)
    cluster.verify_replicas()
    print(f"LOSSES {statistics.losses} {statistics.world_size}\\n", end="", flush=True)
    print(f"OWN {torch.rand(1).item()} {torch.get_num_threads()} {threads}\\n", end="", flush=True)
    cluster.run(4, bits=2)
    cluster.close()

if fault == "raise" and os.environ["RANK"] == "0":
    time.time = lambda: 1e9  # hosts do not share a clock

settings = {"fault": fault, "rank": 0 if fault == "interrupt" else 1}
cluster = Distributed.from_torchrun("faulty:Faulty", settings, timeout_seconds=timeout_seconds)
role, work = ("DRIVING", drive) if os.environ["RANK"] == "0" else ("SERVING", cluster.serve)
try:
    work()
except WorkerError as error:
    print(f"{role} {error}\\n", end="", flush=True)  # in one piece: ranks share the output
    if fault == "hang":
        time.sleep(2)  # torchrun stops the job at the first failure: let every rank say what it saw
        raise
except KeyboardInterrupt:
    cluster.close()
"""


def torchrun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    *,
    ranks: int = 2,
    timeout_seconds: float = 30,
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("PYTHONPATH", str(Path(faulty.__file__).parent))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("TIMEOUT_SECONDS", str(timeout_seconds))
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        str(script),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_torchrun_job_trains_like_local_workers_and_every_rank_hears_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = torchrun(tmp_path, monkeypatch, fault="raise")
    assert job.returncode == 0, job.stderr
    with Distributed("faulty:Faulty") as cluster:
        cluster.reset(seed=3)
        assert f"LOSSES {cluster.run(4, bits=4).losses} 2" in job.stdout
    own = torch.rand(1, generator=torch.Generator().manual_seed(5)).item()
    assert f"OWN {own} 1 {{2}}" in job.stdout  # random numbers and threads: of the driver, and of ranks
    for role in ("DRIVING", "SERVING"):
        assert f"{role} rank 1 raised an exception" in job.stdout
    assert "the data of this rank is broken" in job.stdout


def test_every_other_rank_of_a_torchrun_job_names_the_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = torchrun(tmp_path, monkeypatch, fault="hang", ranks=3, timeout_seconds=8)  # for 10 minutes
    assert job.returncode != 0
    for role in ("DRIVING", "SERVING"):
        assert f"{role} rank 1 hangs or is gone: no answer for 8 s" in job.stdout


def test_the_other_ranks_of_a_torchrun_job_hear_of_a_ctrl_c_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = torchrun(tmp_path, monkeypatch, fault="interrupt")
    assert job.returncode == 0, job.stderr
    assert "SERVING rank 0 raised an exception" in job.stdout
    assert "KeyboardInterrupt" in job.stdout


def test_outside_a_job_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="not a torchrun job: RANK"):
        Distributed.from_torchrun("digits-mlp")


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        job = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        for name, value in job.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RuntimeError, match=rf"rank 0 .*localhost:{port}.*--master-port"):
            Distributed.from_torchrun("digits-mlp", timeout_seconds=5)
