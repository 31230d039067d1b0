"""What goes wrong is noticed in bounded time, named, and leaves no process behind."""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import faulty
import pytest
from policies import make_policy
from processes import assert_gone

from mqgrad.trainers import Distributed, ModelClock, Simulated, WorkerError
from mqgrad.trainers.clusters import local_ranks
from mqgrad.trainers.clusters.worker_process import WorkerProcess

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def faulty_cluster(timeout_seconds: float = 60.0, **settings: object) -> Distributed:
    cluster = Distributed("faulty:Faulty", settings, timeout_seconds=timeout_seconds)
    cluster.reset(seed=0)
    return cluster


def test_a_killed_worker_is_named_and_the_cluster_restarts() -> None:
    with faulty_cluster() as cluster:
        first = cluster.run(3, bits=4)
        pids = cluster.worker_pids
        os.kill(pids[1], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WorkerError, match=r"rank 1 was killed by SIGKILL.*restart\(\)") as caught:
            cluster.run(100, bits=4)
        assert time.monotonic() - start < 10
        assert caught.value.rank == 1
        assert_gone(pids, 1)
        with pytest.raises(RuntimeError, match=r"restart\(\)"):
            cluster.run(1, bits=4)
        cluster.restart()
        cluster.reset(seed=0)
        assert cluster.run(3, bits=4).losses == first.losses
        pids = cluster.worker_pids
    assert_gone(pids, 0)
    cluster.close()  # a second time


def test_an_exception_arrives_with_its_traceback() -> None:
    with faulty_cluster(fault="raise") as cluster:
        with pytest.raises(WorkerError, match="rank 1 raised an exception") as caught:
            cluster.run(10, bits=4)
        assert "ArithmeticError: the data of this rank is broken" in str(caught.value)
        assert "faulty.py" in caught.value.details


def test_an_error_that_looks_like_the_end_of_the_channel_is_told() -> None:
    with faulty_cluster(fault="eof") as cluster:
        with pytest.raises(WorkerError, match="rank 1 raised an exception") as caught:
            cluster.run(10, bits=4)
        assert "EOFError: the file ended early" in str(caught.value)
        assert "faulty.py" in caught.value.details


def test_batches_that_end_are_told_as_what_they_are() -> None:
    """A StopIteration under a traceback says nothing to who has written a DataLoader's ``iter``."""
    told = r"workload 'faulty' has no batch on rank 1 after 5: its batches\(\) must never end"
    with faulty_cluster(fault="end") as cluster, pytest.raises(WorkerError, match=rf"ValueError: {told}"):
        cluster.run(10, bits=4)
    clock = ModelClock(compute_seconds=0.01, mbit_per_s=10.0)
    with Simulated("faulty:Faulty", {"fault": "end"}, clock=clock) as virtual:
        virtual.reset(seed=0)
        virtual.run(5, bits=4)
        with pytest.raises(ValueError, match=told):
            virtual.run(1, bits=4)


def test_an_exit_is_named_with_its_code() -> None:
    with (
        faulty_cluster(fault="exit", rank=0) as cluster,
        pytest.raises(WorkerError, match="rank 0 exited with code 7"),
    ):
        cluster.run(10, bits=4)


def test_a_crash_shows_where_it_happened() -> None:
    with faulty_cluster(fault="crash") as cluster:
        with pytest.raises(WorkerError, match="rank 1 was killed by SIGSEGV") as caught:
            cluster.run(10, bits=4)
        assert "Fatal Python error: Segmentation fault" in caught.value.details
        assert "Extension modules" not in caught.value.details  # which would leave no room for stacks
        assert "_misbehave" in caught.value.details


def test_a_hanging_worker_is_noticed_in_time_and_shows_where_it_hangs() -> None:
    with faulty_cluster(fault="hang", timeout_seconds=3) as cluster:
        start = time.monotonic()
        with pytest.raises(WorkerError, match=r"rank 1 made no progress for 3 s") as caught:
            cluster.run(10, bits=4)
        assert 2 < time.monotonic() - start < 8
        assert "_misbehave" in caught.value.details


def test_where_ranks_meet_in_forward_the_one_that_hangs_before_it_is_named() -> None:
    """Rank 0 waits there to broadcast the buffers of BatchNorm, and was named."""
    with faulty_cluster(fault="hang", has_buffers=True, timeout_seconds=3) as cluster:
        with pytest.raises(WorkerError, match=r"^rank 1 made no progress for 3 s: ") as caught:
            cluster.run(10, bits=4)
        assert "_misbehave" in caught.value.details


def test_a_rank_that_hangs_where_the_others_wait_is_among_those_named() -> None:
    """Rank 0 was named alone."""
    with faulty_cluster(fault="hang-in-backward", timeout_seconds=3) as cluster:
        with pytest.raises(WorkerError, match=r"rank 0 made no progress for 3 s, nor did rank 1: ") as caught:
            cluster.run(10, bits=4)
        assert "--- rank 1 ---" in caught.value.details
        assert "faulty.py" in caught.value.details  # whose hook sleeps


def test_a_rank_that_reads_nothing_is_named_though_a_command_does_not_fit_into_its_channel() -> None:
    """Nothing bounded how long the driver waited for it to take the rest."""
    with faulty_cluster(timeout_seconds=2) as cluster:
        os.kill(cluster.worker_pids[1], signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(WorkerError, match=r"rank 1 made no progress for 2 s"):
            cluster.reset(seed=0, controller=make_policy(provenance={"notes": "x" * 2**21}))
        assert time.monotonic() - start < 10


def test_a_worker_that_cannot_start_is_explained() -> None:
    with pytest.raises(WorkerError, match="rank 0 raised") as caught:
        Distributed("faulty:Faulty", {"fault": "build"}, num_workers=1)
    assert "ArithmeticError: this model cannot be built" in caught.value.details
    assert caught.value.remedy == ""  # there is no cluster to restart


def test_a_rank_that_hangs_while_it_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the one that waits for it."""
    faulty_cluster().close()  # what forks workers is there then
    monkeypatch.setattr("mqgrad.trainers.clusters.local_ranks.START_SECONDS", 6.0)
    with pytest.raises(WorkerError, match=r"rank 1 made no progress for 6 s") as caught:
        Distributed("faulty:Faulty", {"fault": "hang-at-start"}, timeout_seconds=2)
    assert "build_model" in caught.value.details


def test_a_worker_is_deaf_to_ctrl_c_before_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "mqgrad" / "trainers" / "clusters" / "fork_server.py"
    stand_in.parent.mkdir(parents=True)
    for package in stand_in.parents[:3]:
        (package / "__init__.py").touch()
    stand_in.write_text(
        "import os, signal\nos._exit(5 + (signal.getsignal(signal.SIGINT) is signal.SIG_IGN))"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkerError, match="exited with code 6"):
        WorkerProcess(0, 60.0)


def test_a_worker_starts_whatever_is_in_sys_path_and_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signal.py").write_text("raise ImportError('not the one of Python')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # a Path, which import passes over
    with Distributed("faulty:Faulty", num_workers=1) as cluster:
        assert cluster.world_size == 1


def test_the_error_pickles() -> None:
    error = pickle.loads(pickle.dumps(WorkerError(1, "died", "Traceback", "start anew")))
    assert (error.rank, str(error)) == (1, "rank 1 died; start anew\n--- rank 1 ---\nTraceback")


def test_a_default_timeout_of_the_script_leaves_the_workers_channels_alone() -> None:
    socket.setdefaulttimeout(30.0)
    try:
        with faulty_cluster() as cluster:
            time.sleep(0.5)  # workers wait for a command
            assert cluster.run(3, bits=4).iteration == 3
    finally:
        socket.setdefaulttimeout(None)


def test_what_workers_print_does_not_pile_up() -> None:
    with faulty_cluster(fault="chatter") as cluster:
        printed = [Path(f"/proc/{pid}/fd/1") for pid in cluster.worker_pids]
        for _ in range(3):
            cluster.reset(seed=0)
        assert [log.stat().st_size for log in printed] == [3 * 2**20 + 1] * 2  # that of the last reset


def test_a_signal_while_workers_are_stopped_is_heeded_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = faulty_cluster()
    pids, end_all = cluster.worker_pids, local_ranks._end_all

    def interrupted(workers: list[WorkerProcess]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end_all(workers)

    monkeypatch.setattr(local_ranks, "_end_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.close()
    assert_gone(pids, 0)


DRIVER = """
from mqgrad.trainers import Distributed
cluster = Distributed("faulty:Faulty", {settings}, num_workers=1)
cluster.reset(seed=0)
(worker,) = cluster.worker_pids
(line,) = [l for l in open(f"/proc/{{worker}}/status") if l.startswith("PPid:")]
print(worker, line.removeprefix("PPid:"), flush=True)  # and its fork server
{action}
"""


@pytest.mark.parametrize(
    ("settings", "action", "signum"),
    [
        ({}, "input()", signal.SIGKILL),
        ({"fault": "hang", "rank": 0}, "cluster.run(10, bits=4)", signal.SIGKILL),
        ({}, "", None),
        ({}, "cluster.close()", None),
    ],
    ids=["killed idle", "killed while a worker hangs", "never closed", "closed"],
)
def test_nothing_outlives_its_driver(tmp_path: Path, settings: dict, action: str, signum: int | None) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(settings=settings, action=action)],
        env={**os.environ, "PYTHONPATH": str(Path(faulty.__file__).parent), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        if signum is not None:
            time.sleep(1)
            driver.send_signal(signum)
        driver.wait(20)
    assert_gone(pids, 5)
    assert list(tmp_path.glob("mqgrad-*")) == []


def test_a_job_that_was_suspended_goes_on(tmp_path: Path) -> None:
    """By Ctrl-Z and fg: a rank was taken for hung, as nobody had heard of it while all were stopped."""
    script = (
        "from mqgrad.trainers import Distributed\n"
        "with Distributed('digits-mlp', {'width': 16}, timeout_seconds=2) as cluster:\n"
        "    cluster.reset(seed=0)\n"
        "    print('begun', flush=True)\n"
        "    print(cluster.run(800, bits=4).iteration)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
        cwd=tmp_path,
    )
    assert driver.stdout is not None
    driver.stdout.readline()
    time.sleep(0.7)  # between two heartbeats: nobody has anything to say when it goes on
    os.killpg(driver.pid, signal.SIGSTOP)
    assert not select.select([driver.stdout], [], [], 0)[0], "it ended before it was stopped"
    time.sleep(3)
    os.killpg(driver.pid, signal.SIGCONT)
    told, _ = driver.communicate(timeout=60)
    assert (driver.returncode, told.split()) == (0, ["800"])
