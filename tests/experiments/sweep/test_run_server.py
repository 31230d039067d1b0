"""Run after run in the same processes: nothing may leak from one to the next."""

import json
import os
from pathlib import Path

import pytest

from mqgrad.experiments.runs import RunRecord
from mqgrad.experiments.sweep.run_server import RunRequest, serve_runs
from mqgrad.trainers.clusters.distributed import Distributed

SYSTEMS: list[dict[str, str]] = [
    {"controller": "fixed:3"},
    {"controller": "fixed:32", "compressor": "powersgd:rank=1"},
    {"controller": "fixed:32", "compressor": "dgc:ratio=0.1"},
    {"method": "slowmo:period=2"},
    {"method": "backup-workers:mean_delay_ms=1"},
    {"controller": "linear-ramp:decisions=2,interval=3", "link": "200/400@1"},
]


def serve(cluster: Distributed, systems: list[dict[str, str]], folder: Path) -> list[RunRecord]:
    """The records of these systems, asked for one after another."""
    paths = [folder / f"{number}.json" for number in range(len(systems))]
    requests = [
        RunRequest(**system, seed=5, iterations=12, record=str(path))  # type: ignore[arg-type]
        for system, path in zip(systems, paths, strict=True)
    ]
    serve_runs(cluster, [request.to_line() for request in requests])
    return [RunRecord.from_dict(json.loads(path.read_text())) for path in paths]


def held(pid: int) -> tuple[int, int]:
    """Threads and open files of a process."""
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.timeout(150)
def test_a_run_is_the_same_whatever_has_run_before_it(cluster: Distributed, tmp_path: Path) -> None:
    first = serve(cluster, SYSTEMS, tmp_path)
    before = [held(pid) for pid in cluster.worker_pids]
    again = serve(cluster, SYSTEMS[::-1], tmp_path)[::-1]
    assert [held(pid) for pid in cluster.worker_pids] == before
    for one, other in zip(first, again, strict=True):
        assert one.outcome == "finished"
        assert one.final.iteration == 12
        assert len(one.points) > 1
        for a, b in zip(one.points, other.points, strict=True):
            assert (a.train_loss, a.heldout, a.bits) == (b.train_loss, b.heldout, b.bits)
            assert a.wire_bytes == b.wire_bytes
    assert len({record.final.train_loss for record in first}) == len(SYSTEMS)
