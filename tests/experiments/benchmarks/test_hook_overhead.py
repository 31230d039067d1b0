"""The benchmark of the hook beside plain DDP, on two ranks for a few iterations. No timing is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "experiments" / "benchmarks" / "hook_overhead.py"


def test_every_controller_is_measured_beside_plain_ddp(tmp_path: Path) -> None:
    file = tmp_path / "overhead.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    options = ["--workload", "digits-mlp", "--controllers", "fixed:32 default", "--iterations", "2"]
    job = subprocess.run(
        [*launcher, str(SCRIPT), str(file), *options, "--rounds", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert job.returncode == 0, job.stderr
    report = json.loads(file.read_text())
    assert (report["ranks"], report["iterations"], report["rounds"]) == (2, 2, 2)
    assert report["plain_milliseconds"] > 0
    assert list(report["ratio_to_plain"]) == ["fixed:32", "default"]
    for ratio, low, high in report["ratio_to_plain"].values():
        assert 0 < low <= ratio <= high
    assert {"machine", "versions", "revision"} <= set(report)
    first, *others = job.stdout.splitlines()
    assert first.startswith("digits-mlp, 2 ranks, plain DDP ")
    assert [line.split()[0] for line in others] == ["fixed:32", "default"]
