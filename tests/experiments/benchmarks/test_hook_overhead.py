"""The benchmark of the hook beside plain DDP, on two ranks for a few iterations. No timing is asserted."""

import contextlib
import io
import json
import os
import socket
import sys
from pathlib import Path

import hook_overhead
import pytest
import torch.distributed as dist
from ranks import run_ranks


def test_every_controller_is_measured_beside_plain_ddp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "overhead.json"
    controllers = "fixed:32 default@1 plain@1 batch-threads"
    options = ["--workload", "digits-mlp", "--controllers", controllers, "--iterations", "2"]
    monkeypatch.setattr(sys, "argv", ["hook_overhead.py", str(file), *options, "--rounds", "2"])
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])

    def rank_main(rank: int) -> str:
        dist.destroy_process_group()  # the script joins one itself, as torchrun's variables say
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            hook_overhead.main()
        return printed.getvalue()

    told, nothing = run_ranks(rank_main)
    report = json.loads(file.read_text())
    assert (report["ranks"], report["iterations"], report["rounds"]) == (2, 2, 2)
    assert report["plain_milliseconds"] > 0
    assert list(report["ratio_to_plain"]) == controllers.split()
    for ratio, low, high in report["ratio_to_plain"].values():
        assert 0 < low <= ratio <= high
    assert {"machine", "versions", "revision"} <= set(report)
    assert nothing == ""
    for milliseconds in report["processor_milliseconds"].values():
        assert milliseconds["training"] > 0
    assert report["processor_milliseconds"]["plain@1"]["communication"] < 0.1
    assert report["processor_milliseconds"]["default@1"]["communication"] > 0.1
    first, _, *others = told.splitlines()
    assert first.startswith("digits-mlp, 2 ranks, plain DDP ")
    assert [line.split()[0] for line in others] == [
        "fixed:32",
        "default@1",
        "plain@1",
        "batch-threads",
        "plain",
    ]
