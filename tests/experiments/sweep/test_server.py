"""The processes of a sweep on a lab: every run finds the link as if it were the first."""

import sys
import time
from pathlib import Path

import pytest
from labs import needs_lab

from mqgrad.experiments.netlab.job import log_path
from mqgrad.experiments.netlab.lab import NetLab, list_labs
from mqgrad.experiments.netlab.link import parse_link_rates
from mqgrad.experiments.netlab.tcp import DEFAULT_CONGESTION_CONTROL
from mqgrad.experiments.sweep.run_server import RunRequest
from mqgrad.experiments.sweep.server import LabServer
from mqgrad.experiments.sweep.training_clock import TrainingClock, clock_path

ECHO = """
import json, pathlib, sys
for line in sys.stdin:
    pathlib.Path(json.loads(line)["record"]).touch()
"""


@needs_lab
def test_hosts_have_the_congestion_control_that_a_sweep_tells_of_its_labs(tmp_path: Path) -> None:
    in_force = "/proc/sys/net/ipv4/tcp_congestion_control"
    server = LabServer(["cat", in_force], parse_link_rates("none"), 2, tmp_path, "test-congestion")
    try:
        while server.ending() is None:
            time.sleep(0.01)
    finally:
        server.close(at_once=False)
    for rank in range(2):
        assert log_path(tmp_path, rank, "stdout").read_text().strip() == DEFAULT_CONGESTION_CONTROL


@needs_lab
def test_a_link_that_switches_begins_anew_with_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float | None] = []
    set_rate = NetLab.set_rate

    def recording(lab: NetLab, rate_mbit_per_s: float | None) -> None:
        rates.append(rate_mbit_per_s)
        set_rate(lab, rate_mbit_per_s)

    monkeypatch.setattr(NetLab, "set_rate", recording)
    command = [sys.executable, "-c", ECHO]
    server = LabServer(command, parse_link_rates("20mbit/10mbit@0.5s"), 2, tmp_path, "test-switching")
    try:
        for run in ("one", "two"):
            rates.clear()
            record = tmp_path / run
            server.request(RunRequest(seed=1, record=str(record)))
            while not record.exists():
                assert server.ending() is None
                time.sleep(0.01)
            clock = TrainingClock(clock_path(record))
            clock.tell(0.0, goes_on=False)
            time.sleep(0.6)
            assert server.ending() is None
            assert rates == [20.0]  # however long it takes until training begins, and evaluations last
            clock.tell(0.0, goes_on=True)
            while len(rates) < 2:
                assert server.ending() is None
                time.sleep(0.01)
            assert rates == [20.0, 10.0]
            clock.tell(1.2, goes_on=False)  # what counts are the seconds that are told
            assert server.ending() is None
            assert rates == [20.0, 10.0, 20.0]
    finally:
        server.close(at_once=False)
    assert "test-switching" not in list_labs()
