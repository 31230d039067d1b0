"""The runs of a comparison: its folder, runs that fail, and sweeps that are stopped and go on."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from comparison import small_config

from mqgrad.agents.folder_lock import LOCK_FILE, only_process_in
from mqgrad.experiments import sweep_cell
from mqgrad.experiments.iproute import NetLabError
from mqgrad.experiments.netlab_link import LinkRates
from mqgrad.experiments.report_pages import write_report
from mqgrad.experiments.run_server import RunRequest
from mqgrad.experiments.sweep import load_config, load_results, open_sweep
from mqgrad.experiments.sweep_config import SweepConfig
from mqgrad.experiments.sweep_result import CellResult
from mqgrad.experiments.sweep_server import LocalServer

MQGRAD = str(Path(sys.executable).with_name("mqgrad"))

# Stands in for `mqgrad serve-runs`: what it does depends on the controller it is asked for.
FAKE_SERVER = """
import json, os, pathlib, signal, sys, time
controller = ""
for line in sys.stdin:
    if controller == "fixed:7":
        sys.exit("error: that run cannot be closed")
    request = json.loads(line)
    controller, seed = request["controller"], request["seed"]
    with open({calls!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{controller}}\\n")
    if controller == "fixed:1":
        sys.exit("error: out of luck")
    if controller == "fixed:2":
        time.sleep(60)
    if controller == "fixed:3":
        sys.exit(0)  # without a record
    if controller == "fixed:6":
        os.kill(os.getppid(), signal.SIGINT)  # Ctrl-C, at a moment that is known
        time.sleep(60)
    loss = [2.0, 1.0, float("nan") if controller == "fixed:5" else 0.5]
    points = [
        dict(iteration=5 * i + 5, elapsed_seconds=i + 1.0, bits=4, train_loss=loss[i], heldout=dict(loss=loss[i]),
             wire_bytes=2.0**20 * i)
        for i in range(3)
    ]
    outcome = "diverged" if controller == "fixed:5" else "finished"
    record = dict(controller=controller, seed=seed, points=points, outcome=outcome, bit_iterations=60)
    partial = pathlib.Path(request["record"] + ".partial")
    partial.write_text(json.dumps(record))
    partial.replace(request["record"])
"""


def fake_program(folder: Path) -> tuple[list[str], Path]:
    calls, script = folder / "calls", folder / "fake.py"
    script.write_text(FAKE_SERVER.format(calls=str(calls)))
    calls.touch()
    return [sys.executable, str(script)], calls


def controllers(calls: Path) -> list[str]:
    return [line.split()[1] for line in calls.read_text().splitlines()]


def run_fake(folder: Path, config: SweepConfig, **options: Any) -> list[CellResult]:
    program, _ = fake_program(folder)
    with open_sweep(folder / "out", config, program=program) as sweep:
        sweep.run(**options)
    return load_results(folder / "out")


def test_a_run_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    systems = ("fixed:32", "fixed:1", "fixed:2", "fixed:3", "fixed:5", "fixed:4")
    config = small_config(systems=systems, seeds=(1,), time_limit_seconds=4.0)
    results = {result.system: result for result in run_fake(tmp_path, config)}
    processes = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    # new ones after each run that failed, twice where the one before was still open
    assert len(set(processes)) == 5
    assert processes[5] == processes[6]
    assert {name: result.outcome for name, result in results.items()} == {
        "fixed:32": "finished",
        "fixed:1": "crashed",
        "fixed:2": "timed out",
        "fixed:3": "crashed",
        "fixed:5": "diverged",
        "fixed:4": "finished",
    }
    assert "exit status 1 before the run was over: error: out of luck" in results["fixed:1"].reason
    assert results["fixed:1"].retried == results["fixed:1"].reason
    assert "4 s" in results["fixed:2"].reason
    assert results["fixed:2"].retried == ""
    assert "exit status 0" in results["fixed:3"].reason
    assert results["fixed:5"].losses == [2.0, 1.0, None]
    assert results["fixed:32"].wire_bytes == 2.0**21
    assert results["fixed:32"].mean_bits == 4.0
    kept = {folder.name.split("-")[4] for folder in (tmp_path / "out" / "logs").iterdir()}
    assert kept == {"fixed_1", "fixed_2", "fixed_3"}
    report = write_report(tmp_path / "out").markdown.read_text()
    assert "out of luck" in report
    assert "never (0/1)" in report


def test_what_fails_while_a_run_is_closed_costs_the_next_one_nothing(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:7", "fixed:32"), seeds=(1,))
    before, after = run_fake(tmp_path, config)
    assert (before.outcome, before.retried) == ("finished", "")
    assert (after.outcome, after.reason) == ("finished", "")
    assert "that run cannot be closed" in after.retried
    (kept,) = (tmp_path / "out" / "logs").iterdir()
    assert "that run cannot be closed" in "".join(log.read_text() for log in kept.glob("*stderr*"))


def test_finished_runs_are_skipped_and_failed_ones_run_again_on_request(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:32", "fixed:1"), seeds=(1,))
    program, calls = fake_program(tmp_path)
    with open_sweep(tmp_path / "out", config, program=program) as sweep:
        sweep.run()
        sweep.run()
        assert controllers(calls) == ["fixed:32", "fixed:1", "fixed:1"]
        first = load_results(tmp_path / "out")[1]
        sweep.run(retry_failed=True)
    assert controllers(calls) == ["fixed:32", "fixed:1", "fixed:1", "fixed:1"]
    _, again = load_results(tmp_path / "out")
    assert again.retried == first.retried != ""
    assert len(list((tmp_path / "out" / "logs").iterdir())) == 3


def test_a_line_cut_short_is_run_again(tmp_path: Path) -> None:
    config = small_config(seeds=(1,))
    complete = run_fake(tmp_path, config)
    path = tmp_path / "out" / "results.jsonl"
    path.write_text(path.read_text()[:-20])
    assert len(load_results(tmp_path / "out")) == 1
    again = run_fake(tmp_path, config)
    assert [result.cell for result in again] == [result.cell for result in complete]
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(ValueError, match="line 1"):
        load_results(tmp_path / "out")


def test_a_folder_with_another_configuration_is_refused(tmp_path: Path) -> None:
    run_fake(tmp_path, small_config(seeds=(1,)))
    other = small_config(seeds=(1,), iterations=20)
    with (
        pytest.raises(ValueError, match=r"iterations: 15 there, 20 here"),
        open_sweep(tmp_path / "out", other),
    ):
        pass
    assert load_config(tmp_path / "out") == small_config(seeds=(1,))
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {"revision", "versions", "machine"} <= set(fields)
    assert {"cpu", "cores", "kernel"} == set(fields["machine"])


def test_a_folder_in_which_a_process_is_at_work_is_refused(tmp_path: Path) -> None:
    with (
        only_process_in(tmp_path),
        pytest.raises(ValueError, match=f"process {os.getpid()} is at work in"),
        open_sweep(tmp_path, small_config()),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]  # nothing was written
    with (
        open_sweep(tmp_path, small_config()),
        pytest.raises(ValueError, match="is at work in"),
        only_process_in(tmp_path),
    ):
        pass


def test_ctrl_c_leaves_a_folder_to_go_on_from_and_no_process(tmp_path: Path) -> None:
    program, calls = fake_program(tmp_path)
    config = small_config(systems=("fixed:32", "fixed:6", "fixed:4"), seeds=(1,))
    with open_sweep(tmp_path / "out", config, program=program) as sweep:
        with pytest.raises(KeyboardInterrupt):
            sweep.run()
        assert controllers(calls) == ["fixed:32", "fixed:6"]
        assert [cell.system for cell in sweep.pending()] == ["fixed:6", "fixed:4"]
    assert not any(Path("/proc", line.split()[0]).exists() for line in calls.read_text().splitlines())


class FakeLab(LocalServer):
    """Stands in for a lab, of which the kernel refuses some steps, told by name and number."""

    refused: ClassVar[frozenset[tuple[str, int]]] = frozenset()
    steps: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self, command: list[str], rates: LinkRates, hosts: int, logs: Path, name: str) -> None:
        self.step("build")
        super().__init__(command, logs)

    def step(self, name: str) -> None:
        self.steps[name] += 1
        if (name, self.steps[name]) in self.refused:
            raise NetLabError(f"refused to\n{name}")

    def request(self, run: RunRequest) -> None:
        self.step("request")
        super().request(run)

    def begin_training(self) -> None:
        self.step("train")

    def close(self, *, at_once: bool) -> None:
        super().close(at_once=at_once)
        self.step("close")


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Links in the kernel are stubs; fills with the names of labs that are looked for at the end."""
    names: list[str] = []
    monkeypatch.setattr(sweep_cell, "LabServer", FakeLab)
    monkeypatch.setattr(sweep_cell, "remove_stale_lab", names.append)
    monkeypatch.setattr(FakeLab, "steps", collections.Counter())
    return names


@pytest.mark.parametrize(
    ("refused", "retried", "crashed"),
    [
        ({("request", 2)}, 1, None),  # by processes that had carried out a run
        ({("train", 2)}, None, 1),
        ({("train", 2), ("close", 1)}, None, 1),
        ({("close", 1)}, 2, None),
        ({("build", 2)}, 2, None),
        ({("build", 2), ("build", 3)}, 2, 2),
    ],
)
def test_what_the_kernel_refuses_a_lab_is_in_the_row_and_the_sweep_goes_on(
    refused: set[tuple[str, int]],
    retried: int | None,
    crashed: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stale: list[str],
) -> None:
    monkeypatch.setattr(FakeLab, "refused", frozenset(refused))
    rows = run_fake(tmp_path, small_config(links=("100mbit", "1gbit"), seeds=(1,)))
    assert [row.outcome for row in rows] == ["crashed" if n == crashed else "finished" for n in range(4)]
    for number, row in enumerate(rows):
        assert row.retried.startswith("the lab failed: refused to ") == (number == retried)
        assert row.reason.startswith("the lab failed: refused to ") == (number == crashed)
    assert len(stale) == 1


def test_when_no_lab_can_be_built_any_more_the_sweep_stops_and_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: list[str]
) -> None:
    monkeypatch.setattr(FakeLab, "refused", frozenset(("build", number) for number in range(2, 9)))
    with pytest.raises(NetLabError, match="refused to"):
        run_fake(tmp_path, small_config(links=("100mbit", "1gbit"), seeds=(1,)))
    outcomes = [row.outcome for row in load_results(tmp_path / "out")]
    assert outcomes == ["finished", "finished", "crashed"]


def test_where_no_lab_can_be_built_nothing_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: list[str]
) -> None:
    monkeypatch.setattr(FakeLab, "refused", frozenset({("build", 1)}))
    with pytest.raises(NetLabError, match="refused to"):
        run_fake(tmp_path, small_config(links=("100mbit",)))
    assert load_results(tmp_path / "out") == []


@pytest.mark.timeout(200)
def test_a_real_sweep_of_one_tiny_cell_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    grid = ["--workloads", "digits-mlp", "--controllers", "fixed:32", "--links", "emulated:100mbit"]
    size = ["--seeds", "1", "--hosts", "2", "--iterations", "10", "--set", "digits-mlp:width=16"]
    command = [MQGRAD, "compare", "--output", str(out), *grid, *size]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    rows = {row.system: row for row in load_results(out)}
    assert set(rows) == {"fixed:32", "plain-ddp"}
    for row in rows.values():
        assert (row.outcome, row.iterations) == ("finished", [5, 10]), row.reason
    assert "EMULATED" in (out / "report.md").read_text()
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page
    assert str(tmp_path) not in page
    again = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "2 of them done" in again.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root can build a lab")
def test_without_root_every_link_is_emulated_and_says_so(tmp_path: Path) -> None:
    command = [MQGRAD, "compare", "--output", str(tmp_path), "--grid", "quick", "--controllers", "magic"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "emulated in the transport" in done.stdout
