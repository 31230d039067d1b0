"""Shaped hosts in network namespaces: what they reach and how fast, and where they cannot be."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from labs import needs_lab, python
from typer.testing import CliRunner

from mqgrad.experiments.cli import app
from mqgrad.experiments.netlab import iproute
from mqgrad.experiments.netlab import lab as netlab
from mqgrad.experiments.netlab.lab import INTERFACE, NetLab, list_labs
from mqgrad.experiments.netlab.link import LinkShape, RateChange, parse_link_rates
from mqgrad.experiments.netlab.run import LabResult, run_lab, run_on_new_lab

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


def transfer(lab: NetLab, logs: Path, *sizes: int) -> tuple[list[float], LabResult]:
    """Seconds that messages of these bytes took from host 1 to host 0."""
    result = run_lab(lab, python(TRANSFER, *sizes), logs, time_limit_seconds=30)
    assert result.outcome == "ok"
    return [float(line) for line in (logs / "rank1.stdout.log").read_text().split()], result


def queues(lab: NetLab) -> str:
    """What the kernel says of the queues and their buckets at both ends of every link."""
    hub = [(lab._namespace("hub"), f"port{host}") for host in range(lab.hosts)]
    ends = [*hub, *((lab._namespace(host), INTERFACE) for host in range(lab.hosts))]
    return "".join(
        iproute.run_tool("tc", "-n", namespace, kind, "show", "dev", end)
        for namespace, end in ends
        for kind in ("qdisc", "class")
    )


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
        assert long > 0.9  # 0.96 s of payload; a busy machine may be late, never early
        assert long < 1.5
        assert (
            0.0145 < min(short) < 0.024
        )  # 16 ms, at 1.05 times the rate 15.2: little slips through after a pause
        assert result.hosts[0].rx_bytes == pytest.approx(sum(sizes), rel=0.06)
        assert result.hosts[1].tx_bytes == pytest.approx(sum(sizes), rel=0.06)
        assert result.hosts[1].rx_bytes < sum(sizes) / 20

        lab.set_rate(1000)
        (of_a_gigabit, _) = transfer(lab, tmp_path, *[183_000] * 5)
        assert 0.0008 < min(of_a_gigabit) < 0.004  # 1.5 ms; 62 kB of it may pass at once
        lab.set_rate(20)
        ((slow,), _) = transfer(lab, tmp_path, 2_000_000)
        assert slow > 0.7
        lab.set_rate(None)
        assert "htb" not in queues(lab)


@needs_lab
def test_the_rate_changes_on_schedule(tmp_path: Path) -> None:
    with NetLab(2, LinkShape(rate_mbit_per_s=None)) as lab:
        assert "htb" not in queues(lab)
        result = run_lab(
            lab,
            python(TRANSFER, *[100_000] * 10, 1_000_000),
            tmp_path,
            schedule=[RateChange(0.1, 10.0)],
            time_limit_seconds=30,
        )
        assert queues(lab).count("rate 10Mbit") == 4
    seconds = [float(line) for line in (tmp_path / "rank1.stdout.log").read_text().split()]
    assert seconds[-1] > 0.6  # 0.8 s at 10 Mbit/s
    ((change),) = result.rate_changes
    assert change.rate_mbit_per_s == 10.0
    assert change.seconds >= 0.1


@needs_lab
def test_a_link_switches_in_turn(tmp_path: Path) -> None:
    changes = parse_link_rates("100mbit/10mbit@0.5s").changes()
    result = run_on_new_lab(NetLab(2), ["sleep", "1.3"], tmp_path, schedule=changes, time_limit_seconds=30)
    rates = [change.rate_mbit_per_s for change in result.rate_changes]
    assert rates[:2] == [10.0, 100.0]
    for number, change in enumerate(result.rate_changes, start=1):
        assert change.seconds >= 0.5 * number  # late on a busy machine, never early


@needs_lab
def test_two_labs_at_once_do_not_meet(tmp_path: Path) -> None:
    with NetLab(2, LinkShape(rate_mbit_per_s=50)) as one, NetLab(2, LinkShape(rate_mbit_per_s=None)) as two:
        with pytest.raises(iproute.NetLabError, match="is running"), NetLab(2, name=one.name):
            pass
        transfer(two, tmp_path, 1_000_000)
        assert one.counters()[0].rx_bytes < 10_000
        transfer(one, tmp_path, 1_000_000)
        assert one.counters()[0].rx_bytes > 900_000


def test_without_root_or_tools_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(
            iproute.NetLabError,
            match=r"needs root.*--links emulated:RATE.*--link-mbit-per-s",
        ),
        NetLab(2),
    ):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(iproute.shutil, "which", lambda name, path=None: None)
    with pytest.raises(iproute.NetLabError, match=r"iproute2.*--link-mbit-per-s"), NetLab(2):
        pass


def test_a_stale_lab_that_is_refused_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr(netlab, "check_available", lambda: None)
    monkeypatch.setattr(netlab, "list_labs", lambda: ["test-stale"])
    monkeypatch.setattr(netlab, "_remove", removed.append)
    lab = NetLab(2, name="test-stale")
    for _ in range(2):  # the name is given back
        with pytest.raises(iproute.NetLabError, match="a stale lab 'test-stale' exists"), lab:
            pass
    lab.close()
    assert removed == []


def test_a_namespace_that_is_not_removed_keeps_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ip(*arguments: str) -> str:
        if arguments[:2] == ("netns", "delete"):
            asked.append(arguments[2])
            if arguments[2].endswith(".0"):
                raise iproute.NetLabError("busy")
        return ""

    there = [f"mqgrad-netlab.test-busy.{host}" for host in ("0", "1", "hub")]
    monkeypatch.setattr(netlab, "_namespaces", lambda: there)
    monkeypatch.setattr(netlab, "ip", ip)
    with pytest.raises(iproute.NetLabError, match="lab 'test-busy' could not be removed: busy"):
        netlab._remove("test-busy")
    assert asked == there


def test_without_root_there_is_no_folder_for_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = CliRunner().invoke(app, ["netlab", "--", "true"])
    assert isinstance(done.exception, iproute.NetLabError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "no-such-program"], "no-such-program"),
        (["--time-limit-seconds", "-1", "--", "true"], "time_limit_seconds must be"),
    ],
)
def test_a_mistake_builds_no_lab_and_no_folder(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iproute, "check_available", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = CliRunner().invoke(app, ["netlab", *arguments])
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_who_cleans_runs_nothing() -> None:
    done = CliRunner().invoke(app, ["netlab", "--clean", "all", "--", "true"])
    assert done.exit_code == 2
    assert "--clean" in done.output


@pytest.mark.parametrize("name", ["all", "", "a.b", "../x", "x" * 33])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a lab"):
        NetLab(2, name=name)


@pytest.mark.parametrize("hosts", [0, 65])
def test_impossible_numbers_of_hosts_are_refused(hosts: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        NetLab(hosts)


# Sends without end to a host that throws away what it gets; prints the largest packet of each half second.
PACKETS = """
import os, socket, threading, time
if os.environ["RANK"] == "0":
    connection, _ = socket.create_server(("", 4000)).accept()
    while connection.recv(1 << 20):
        pass
else:
    for attempt in range(200):
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], 4000), timeout=20)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    threading.Thread(target=lambda: [connection.sendall(bytes(1 << 16)) for _ in iter(int, 1)], daemon=True).start()
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    while True:
        end = time.monotonic() + 0.5
        largest = 0
        while time.monotonic() < end:
            largest = max(largest, len(tap.recv(1 << 17)))
        print(largest, flush=True)
"""


@needs_lab
def test_open_connections_follow_a_change_of_rate(tmp_path: Path) -> None:
    """Else a link that becomes faster would go on with the small packets of the slow one, which cost time."""
    with NetLab(2, LinkShape(rate_mbit_per_s=100)) as lab:
        faster = [RateChange(1.5, 1000.0)]
        run_lab(lab, python(PACKETS), tmp_path, schedule=faster, time_limit_seconds=3)
    largest = [int(line) for line in (tmp_path / "rank1.stdout.log").read_text().split()]
    assert largest[0] < 3500
    assert max(largest) > 20_000


@needs_lab
def test_a_link_under_load_goes_on_at_a_lower_rate() -> None:
    """What is queued then may be larger than the buckets of the new rate."""
    sink = "import socket; c, _ = socket.create_server(('', 4000)).accept()\nwhile c.recv(1 << 20): pass"
    source = f"import socket, time; time.sleep(0.3); c = socket.create_connection(('{NetLab(2).address(0)}', 4000))\n"
    with NetLab(2, LinkShape(rate_mbit_per_s=1000)) as lab:
        for host, script in enumerate((sink, source + "while True: c.sendall(bytes(1 << 16))")):
            lab.popen(host, [sys.executable, "-c", script])
        time.sleep(1.0)
        for _ in range(3):
            lab.set_rate(100)
            time.sleep(0.1)
            before, start = lab.counters()[0].rx_bytes, time.monotonic()
            time.sleep(0.3)
            mbit = 8e-6 * (lab.counters()[0].rx_bytes - before)
            assert 60 < mbit / (time.monotonic() - start) < 120
            lab.set_rate(1000)
            time.sleep(0.2)
