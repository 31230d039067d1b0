"""Workers are forked from a process that has imported what they need, and that goes when it is of no more use."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import faulty
import pytest
from processes import assert_gone

from mqgrad.trainers import Distributed, WorkerError
from mqgrad.trainers.clusters import fork_server_process, worker_process

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(autouse=True)
def servers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the cluster which other tests share: some are killed here."""
    monkeypatch.setenv("MQGRAD_SERVERS", "of their own")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def parent_of_workers() -> int:
    """Process id of the fork server that a cluster has now."""
    with Distributed("faulty:Faulty", num_workers=1) as cluster:
        return parent(cluster.worker_pids[0])


def test_clusters_one_after_another_and_beside_one_another_share_a_server() -> None:
    with Distributed("faulty:Faulty") as one, Distributed("faulty:Faulty", num_workers=1) as other:
        parents = set(map(parent, one.worker_pids + other.worker_pids))
    assert parents == {parent_of_workers()}
    assert parents != {os.getpid()}


def test_a_worker_is_as_if_started_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent_of_workers()  # from another folder
    monkeypatch.chdir(tmp_path)
    with Distributed("telling:Telling") as one, Distributed("telling:Telling") as other:
        pids, others = one.worker_pids, other.worker_pids
        assert [Path(f"/proc/{pid}/cwd").readlink() for pid in pids] == [tmp_path] * 2
        assert len({len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids + others}) == 1
        one.reset(seed=0)
        other.reset(seed=0)
        assert not set(one.evaluate().values()) & set(other.evaluate().values())


def test_other_variables_make_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch reads while it is imported would stay as it was."""
    before = parent_of_workers()
    with monkeypatch.context() as context:
        context.setenv("MQGRAD_TOLD", "7")
        with Distributed("faulty:Faulty", num_workers=1) as cluster:
            (pid,) = cluster.worker_pids
            assert b"MQGRAD_TOLD=7" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert parent(pid) != before
    assert parent_of_workers() == before


def test_a_process_forked_from_the_driver_has_a_server_of_its_own() -> None:
    ours = parent_of_workers()
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=lambda: sending.send(parent_of_workers()), daemon=True
    )
    process.start()
    assert receiving.poll(60)
    theirs = receiving.recv()
    process.join(10)
    assert process.exitcode == 0
    assert theirs != ours
    assert_gone([theirs], 5)
    assert parent_of_workers() == ours


def test_a_server_that_was_killed_takes_its_workers_along_and_another_follows() -> None:
    with Distributed("faulty:Faulty") as cluster:
        cluster.reset(seed=0)
        pids = cluster.worker_pids
        server = parent(pids[0])
        os.kill(server, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"ended with its parent, .*, which was killed by SIGKILL"):
            cluster.run(10**6, bits=4)
        assert_gone(pids, 5)
        cluster.restart()
        assert parent(cluster.worker_pids[0]) != server


def test_a_server_that_ends_between_two_looks_is_replaced() -> None:
    server = parent_of_workers()
    known = fork_server_process.fork_server()
    os.kill(server, signal.SIGKILL)
    assert_gone([server], 5)
    with pytest.MonkeyPatch.context() as context:  # it was seen a moment ago
        looks = iter([known])
        start_another = fork_server_process.fork_server
        context.setattr(worker_process, "fork_server", lambda: next(looks, None) or start_another())
        assert parent_of_workers() != server


def test_a_stopped_server_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    server = parent_of_workers()
    os.kill(server, signal.SIGSTOP)
    known = fork_server_process.fork_server()
    try:
        with pytest.raises(fork_server_process.ForkServerError, match=r"did not answer within 0\.5 s"):
            known.fork(0, 0, 0.5)
        assert parent_of_workers() != server
    finally:
        os.kill(server, signal.SIGKILL)


def test_what_keeps_the_server_from_starting_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise ArithmeticError('this is no numpy')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkerError, match=r"rank 0 could not be started: .* exited with code 1\n") as caught:
        Distributed("faulty:Faulty")
    assert "ArithmeticError: this is no numpy" in caught.value.details


DRIVER = """
import time
from mqgrad.trainers import Distributed
from mqgrad.trainers.clusters import fork_server_process
fork_server_process.LINGER_SECONDS = 1.0
cluster = Distributed("faulty:Faulty", num_workers=1)
time.sleep(2)
print(*cluster.worker_pids, flush=True)
input()
cluster.close()
input()
"""


def test_it_goes_when_it_has_had_no_workers_for_a_while() -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env={**os.environ, "PYTHONPATH": str(Path(faulty.__file__).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        server = parent(int(driver.stdout.readline()))
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert_gone([server], 10)
        assert driver.poll() is None
        driver.communicate("\n", timeout=20)


def test_a_relative_entry_of_sys_path_is_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the fork server took it for was inherited."""
    monkeypatch.setattr(sys, "path", ["workloads", *sys.path])
    for folder, width in (("one", 3), ("other", 5)):
        (tmp_path / folder / "workloads").mkdir(parents=True)
        text = f"import faulty\n\ndef workload():\n    return faulty.Faulty(width={width}, fault='chatter')\n"
        (tmp_path / folder / "workloads" / "mine.py").write_text(text)
        monkeypatch.chdir(tmp_path / folder)
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        sys.path_importer_cache.pop("workloads", None)
        with Distributed("mine:workload", num_workers=1) as cluster:
            cluster.reset(seed=0)
            digest = cluster.verify_replicas()
        with Distributed("faulty:Faulty", {"width": width}, num_workers=1) as cluster:
            cluster.reset(seed=0)
            assert cluster.verify_replicas() == digest
