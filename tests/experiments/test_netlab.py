"""Shaped hosts in network namespaces: what they reach, how fast, and that nothing of them stays."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mqgrad.experiments import iproute, netlab_job
from mqgrad.experiments.cli import app
from mqgrad.experiments.netlab import NetLab, clean_lab, list_labs
from mqgrad.experiments.netlab_link import (
    LinkRates,
    LinkShape,
    RateChange,
    parse_link_rate,
    parse_link_rates,
    parse_schedule,
)
from mqgrad.experiments.netlab_run import LabResult, run_lab, run_on_new_lab


def why_no_lab() -> str:
    try:
        with NetLab(2, LinkShape(rate_mbit_per_s=10)):
            return ""
    except iproute.NetLabError as error:
        return str(error)


needs_lab = pytest.mark.skipif(bool(reason := why_no_lab()), reason=f"no shaped network here: {reason}")

# Rank 1 sends the byte counts in its arguments, each after a pause; rank 0 prints the seconds that each took.
TRANSFER = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", 4000))
    connection, _ = server.accept()
    for size in map(int, sys.argv[1:]):
        while size:
            size -= len(connection.recv(min(size, 1 << 20)))
        connection.sendall(b"x")
else:
    for attempt in range(200):
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], 4000), timeout=20)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    for size in map(int, sys.argv[1:]):
        time.sleep(0.1)
        start = time.perf_counter()
        connection.sendall(bytes(size))
        connection.recv(1)
        print(time.perf_counter() - start)
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def transfer(lab: NetLab, logs: Path, *sizes: int) -> tuple[list[float], LabResult]:
    """Seconds that messages of these bytes took from host 1 to host 0."""
    result = run_lab(lab, python(TRANSFER, *sizes), logs, timeout_seconds=30)
    assert result.outcome == "ok"
    return [float(line) for line in (logs / "rank1.stdout.log").read_text().split()], result


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def running(marker: str) -> list[str]:
    """Command lines of living processes that contain the marker, other than this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


@needs_lab
def test_hosts_reach_each_other_and_nothing_else() -> None:
    probe = """
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.create_connection((address, 9), timeout=0.5)
    except ConnectionRefusedError:
        print("there")
    except OSError:
        print("no way")
"""
    outside = "192.0.2.1"
    with NetLab(3) as lab:
        process = lab.popen(
            1, python(probe, *map(lab.address, range(3)), lab.address(3), outside), stdout=subprocess.PIPE
        )
        output, _ = process.communicate(timeout=20)
        assert output.decode().splitlines() == ["there"] * 3 + ["no way"] * 2
    assert lab.name not in list_labs()


@needs_lab
def test_links_carry_their_rate_and_count_what_they_carry(tmp_path: Path) -> None:
    with NetLab(2, LinkShape(rate_mbit_per_s=100)) as lab:
        sizes = [12_000_000, 200_000, 200_000, 200_000]
        (long, *short), result = transfer(lab, tmp_path, *sizes)
        assert 0.9 < long < 2.5  # 0.96 s of payload; a busy machine may be late, never early
        assert min(short) > 0.010  # 16 ms without the burst: a short message does not slip through in it
        assert result.hosts[0].rx_bytes == pytest.approx(sum(sizes), rel=0.06)
        assert result.hosts[1].tx_bytes == pytest.approx(sum(sizes), rel=0.06)
        assert result.hosts[1].rx_bytes < sum(sizes) / 20

        lab.set_rate(20)
        ((slow,), _) = transfer(lab, tmp_path, 2_000_000)
        assert 0.7 < slow < 2.5
        lab.set_rate(None)
        ((free,), _) = transfer(lab, tmp_path, 12_000_000)
        assert free < long / 2


@needs_lab
def test_the_rate_changes_on_schedule(tmp_path: Path) -> None:
    with NetLab(2, LinkShape(rate_mbit_per_s=None)) as lab:
        result = run_lab(
            lab,
            python(TRANSFER, 1_000_000, *[100_000] * 10, 1_000_000),
            tmp_path,
            schedule=[RateChange(0.5, 10.0)],
            timeout_seconds=30,
        )
    seconds = [float(line) for line in (tmp_path / "rank1.stdout.log").read_text().split()]
    assert seconds[0] < 0.4
    assert 0.6 < seconds[-1] < 2.0  # 0.8 s at 10 Mbit/s
    ((change),) = result.rate_changes
    assert change.rate_mbit_per_s == 10.0
    assert 0.5 <= change.seconds < 1.5


@needs_lab
def test_a_link_switches_in_turn(tmp_path: Path) -> None:
    changes = parse_link_rates("100mbit/10mbit@0.5s").changes()
    result = run_on_new_lab(NetLab(2), ["sleep", "1.8"], tmp_path, schedule=changes, timeout_seconds=30)
    assert [change.rate_mbit_per_s for change in result.rate_changes[:3]] == [10.0, 100.0, 10.0]
    for number, change in enumerate(result.rate_changes, start=1):
        assert 0.5 * number <= change.seconds < 0.5 * number + 1.0  # late on a busy machine, never early


@needs_lab
def test_a_failing_host_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlab_job, "_GRACE_SECONDS", 0.5)
    stubborn = f"mqgrad-test-{os.getpid()}"
    code = """
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    sys.exit("the data of this host is broken")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", *sys.argv[1:]], start_new_session=True)
time.sleep(300)
"""
    started = time.monotonic()
    lab = NetLab(3)
    result = run_on_new_lab(lab, python(code, stubborn), tmp_path)
    assert time.monotonic() - started < 10
    assert result.outcome == "failed: rank 1 (exit status 1)"
    assert result.status == 1
    assert [host.ending for host in result.hosts] == ["stopped", "failed", "stopped"]
    assert [host.returncode for host in result.hosts] == [-signal.SIGKILL, 1, -signal.SIGKILL]
    assert "data of this host is broken" in netlab_job.log_tail(tmp_path, 1)
    assert lab.name not in list_labs()
    assert not running(stubborn)


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), 0.0])
def test_a_time_limit_that_is_none_is_refused(limit: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="timeout_seconds must be a finite number above 0"):
        run_on_new_lab(NetLab(2), ["true"], tmp_path, timeout_seconds=limit)


@needs_lab
def test_a_time_limit_and_a_signal_end_the_run(tmp_path: Path) -> None:
    result = run_on_new_lab(NetLab(2), ["sleep", "300"], tmp_path, timeout_seconds=0.3)
    assert (result.status, result.hosts[0].ending) == (124, "stopped")
    assert "ranks [0, 1] still ran" in result.outcome

    lab = NetLab(2)

    def terminate() -> None:  # once the handlers are in place, or it would end the tests themselves
        wait_until(lambda: lab.name in list_labs())
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    result = run_on_new_lab(lab, ["sleep", "300"], tmp_path, timeout_seconds=20)
    thread.join(30)
    assert (result.outcome, result.status) == ("interrupted by SIGTERM", 143)
    assert lab.name not in list_labs()


def start_command(name: str, marker: str) -> "subprocess.Popen[bytes]":
    code = "import time; time.sleep(300)"
    command = [str(Path(sys.executable).parent / "mqgrad"), "netlab", "--name", name, "--"]
    process = subprocess.Popen([*command, *python(code, marker)])
    wait_until(lambda: len(running(marker)) == 3)  # the command and its two hosts
    return process


@needs_lab
def test_ctrl_c_leaves_nothing() -> None:
    name = marker = f"ctrl-c-{os.getpid()}"
    process = start_command(name, marker)
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130
    assert name not in list_labs()
    assert not running(marker)


@needs_lab
def test_a_stale_lab_is_cleaned_by_name() -> None:
    name = marker = f"stale-{os.getpid()}"
    process = start_command(name, marker)
    with pytest.raises(iproute.NetLabError, match="is running"):
        clean_lab(name)
    process.kill()
    process.wait(10)
    assert running(marker)
    with pytest.raises(iproute.NetLabError, match=f"--clean {name}"), NetLab(2, name=name):
        pass
    with NetLab(2) as other:
        result = CliRunner().invoke(app, ["netlab", "--clean", name])
        assert result.output == f"removed lab {name}\n"
        assert other.name in list_labs()
    assert name not in list_labs()
    assert not running(marker)
    with pytest.raises(ValueError, match=f"no lab '{name}'"):
        clean_lab(name)


@needs_lab
def test_two_labs_at_once_do_not_meet(tmp_path: Path) -> None:
    with NetLab(2, LinkShape(rate_mbit_per_s=50)) as one, NetLab(2, LinkShape(rate_mbit_per_s=None)) as two:
        with pytest.raises(iproute.NetLabError, match="is running"), NetLab(2, name=one.name):
            pass
        transfer(two, tmp_path, 1_000_000)
        assert one.counters(0).rx_bytes < 10_000
        transfer(one, tmp_path, 1_000_000)
        assert one.counters(0).rx_bytes > 900_000


@needs_lab
def test_a_torch_job_finds_its_ranks(tmp_path: Path) -> None:
    job = """
import os, torch, torch.distributed as dist
assert dist.is_torchelastic_launched() and os.environ["LOCAL_RANK"] == "0"
dist.init_process_group("gloo")
tensor = torch.full((100_000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
print(tensor.unique().tolist(), torch.get_num_threads())
dist.destroy_process_group()
"""
    result = run_on_new_lab(NetLab(2), python(job), tmp_path, timeout_seconds=60)
    assert result.outcome == "ok", netlab_job.log_tail(tmp_path, 1)
    for rank in range(2):
        assert (tmp_path / f"rank{rank}.stdout.log").read_text() == "[3.0] 1\n"
        assert result.hosts[rank].tx_bytes > 400_000
    assert (tmp_path / "netlab.json").exists()


def test_without_root_or_tools_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(iproute.NetLabError, match=r"needs root.*--link-mbit-per-s"), NetLab(2):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(iproute.shutil, "which", lambda name, path=None: None)
    with pytest.raises(iproute.NetLabError, match=r"iproute2.*--link-mbit-per-s"), NetLab(2):
        pass


def test_rates_and_schedules_are_read() -> None:
    assert [parse_link_rate(text) for text in ("500kbit", "100mbit", "2.5gbit", "none")] == [
        0.5,
        100.0,
        2500.0,
        None,
    ]
    switching = parse_link_rates("100mbit/none@2.5s")
    assert switching == LinkRates((100.0, None), 2.5)
    assert list(itertools.islice(switching.changes(), 3)) == [
        RateChange(2.5, None),
        RateChange(5.0, 100.0),
        RateChange(7.5, None),
    ]
    assert list(parse_link_rates("1gbit").changes()) == []
    assert parse_schedule("0:1gbit,30:none") == [RateChange(0.0, 1000.0), RateChange(30.0, None)]


@pytest.mark.parametrize("text", ["100", "100mbps", "-1mbit", "", "fast"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_link_rate(text)


@pytest.mark.parametrize("text", ["1gbit", "0:1gbit,0:2gbit", "5:1gbit,1:2gbit", "x:1gbit", "0:1gbit,"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"schedule|SECONDS:RATE"):
        parse_schedule(text)


@pytest.mark.parametrize(
    "text", ["1gbit@10s", "1gbit/100mbit", "1gbit/100mbit@10", "1gbit/fast@10s", "1gbit/2gbit@0s"]
)
def test_what_is_no_switching_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"as in 100mbit/1gbit@10s|not a rate|cannot switch"):
        parse_link_rates(text)


@pytest.mark.parametrize("name", ["all", "", "a.b", "../x", "x" * 33])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a lab"):
        NetLab(2, name=name)


@pytest.mark.parametrize("hosts", [0, 65])
def test_impossible_numbers_of_hosts_are_refused(hosts: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        NetLab(hosts)


def test_impossible_links_are_refused() -> None:
    for link in ({"rate_mbit_per_s": 0.0}, {"burst_kib": 0}, {"latency_ms": 0.0}):
        with pytest.raises(ValueError, match=r"too low|no packet|no queue"):
            LinkShape(**link)


@needs_lab
def test_an_unknown_program_is_named(tmp_path: Path) -> None:
    lab = NetLab(1)
    with pytest.raises(ValueError, match="no program 'mqgrad-nonsense'"):
        run_on_new_lab(lab, ["mqgrad-nonsense"], tmp_path)
    assert lab.name not in list_labs()
