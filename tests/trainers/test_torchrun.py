"""A cluster made of the ranks of a real torchrun job."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mqgrad.trainers import Distributed

SCRIPT = """
import os
from mqgrad.trainers import Distributed, WorkerError
cluster = Distributed.from_torchrun("faulty:Faulty", {"fault": os.environ["FAULT"]}, timeout_seconds=30)
if os.environ["RANK"] != "0":
    try:
        cluster.serve()
    except WorkerError as error:
        print("SERVING", error)
    raise SystemExit
try:
    cluster.reset(seed=3)
    statistics = cluster.run(4, bits=4)
    cluster.verify_replicas()
    print("LOSSES", statistics.losses, statistics.world_size)
    cluster.run(4, bits=2)
    cluster.close()
except WorkerError as error:
    print("DRIVING", error)
"""


def torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> str:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("FAULT", fault)
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_torchrun_job_trains_like_local_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = torchrun(tmp_path, monkeypatch, fault="")
    assert "ING rank" not in output  # all ranks ended in peace
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with Distributed("faulty:Faulty") as cluster:
        cluster.reset(seed=3)
        assert f"LOSSES {cluster.run(4, bits=4).losses} 2" in output


def test_every_rank_of_a_torchrun_job_hears_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = torchrun(tmp_path, monkeypatch, fault="raise")
    for role in ("DRIVING", "SERVING"):
        assert f"{role} rank 1 raised an exception" in output
    assert "the data of this rank is broken" in output


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
