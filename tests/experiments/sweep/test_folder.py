"""The runs of a comparison: its folder, runs that fail, and sweeps that are stopped and go on."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from comparison import small_config
from fake_server import fake_program, run_fake
from labs import needs_lab
from rich.console import Console
from typer.testing import CliRunner

from mqgrad.experiments.cli import app
from mqgrad.experiments.compare.progress import run_sweep
from mqgrad.experiments.netlab.lab import NetLab, list_labs
from mqgrad.experiments.netlab.link import SHAPING
from mqgrad.experiments.reports.pages import write_report
from mqgrad.experiments.sweep.config import SweepConfig
from mqgrad.experiments.sweep.folder import load_config, load_results, open_sweep
from mqgrad.run_folder import LOCK_FILE, only_process_in

MQGRAD = str(Path(sys.executable).with_name("mqgrad"))


def controllers(calls: Path) -> list[str]:
    return [line.split()[1] for line in calls.read_text().splitlines()]


def test_a_run_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    systems = ("fixed:32", "fixed:1", "fixed:2", "fixed:3", "fixed:5", "fixed:4")
    config = small_config(systems=systems, seeds=(1,), time_limit_seconds=2.0)
    results = {result.system: result for result in run_fake(tmp_path, config)}
    processes = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    # new ones after each run that failed, twice where the one before was still open
    assert len(set(processes)) == 5 < len(processes)
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
    assert "2 s" in results["fixed:2"].reason
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


def test_a_run_with_a_long_name_that_fails_is_a_row_with_its_logs(tmp_path: Path) -> None:
    long = f"fixed:1 with {','.join(40 * ['width=16'])}"
    rows = run_fake(tmp_path, small_config(systems=(long, "fixed:32"), seeds=(1,)))
    assert {row.system: row.outcome for row in rows} == {long: "crashed", "fixed:32": "finished"}
    (kept,) = (folder.name for folder in (tmp_path / "out" / "logs").iterdir())
    assert kept.startswith("digits-mlp-own-emulated_100mbit-fixed_1_with_width=16")
    assert kept.endswith("width=16-1")


def test_what_fails_while_a_run_is_closed_costs_the_next_one_nothing(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:7", "fixed:32"), seeds=(1,))
    before, after = run_fake(tmp_path, config)
    assert (before.outcome, before.retried) == ("finished", "")
    assert (after.outcome, after.reason) == ("finished", "")
    assert "that run cannot be closed" in after.retried
    (kept,) = (tmp_path / "out" / "logs").iterdir()
    assert "that run cannot be closed" in "".join(log.read_text() for log in kept.glob("*stderr*"))


def test_what_a_killed_sweep_has_left_is_removed_before_the_first_run(tmp_path: Path) -> None:
    program, _ = fake_program(tmp_path)
    with open_sweep(tmp_path / "out", small_config(seeds=(1,)), program=program):
        pass
    left = tmp_path / "out" / "logs" / "serving-1"
    left.mkdir(parents=True)
    (left / "record.json").write_text('{"outcome": "finished"}')
    with open_sweep(tmp_path / "out", small_config(seeds=(1,)), program=program) as sweep:
        sweep.run(on_start=lambda run: pytest.fail("still there") if left.exists() else None)
    assert not list((tmp_path / "out" / "logs").iterdir())


def test_every_process_that_sweeps_has_its_processes_write_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one that was killed may still write."""
    script = tmp_path / "tells.py"
    script.write_text("import json, sys; sys.exit(json.loads(sys.stdin.readline())['record'])")
    told = []
    for pid in (1, 2):
        monkeypatch.setattr("mqgrad.experiments.sweep.runner.os.getpid", lambda pid=pid: pid)
        with open_sweep(
            tmp_path / "out", small_config(seeds=(1,)), program=[sys.executable, str(script)]
        ) as it:
            it.run(retry_failed=True)
        told += [row.reason for row in load_results(tmp_path / "out")]
    assert ["serving-1" in reason for reason in told] == [True, True, False, False], told


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
    assert [result.run for result in again] == [result.run for result in complete]
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
    assert {"cpu", "cpu_family", "cpu_model", "cores", "kernel", "tcp"} == set(fields["machine"])
    assert "lab" not in fields


@pytest.mark.parametrize(
    ("part", "name", "there"),
    [
        ("machine", "cpu", "another processor"),
        ("machine", "cpu_family", "another family"),
        ("machine", "cpu_model", "another model"),
        ("machine", "cores", 96),
        ("versions", "torch", "2.10.0"),
        ("versions", "numpy", None),
        ("versions", "python", "3.9.1"),
        ("versions", "codec", "reference"),
    ],
)
def test_a_folder_of_another_machine_or_other_versions_is_not_continued(
    part: str, name: str, there: str | int | None, tmp_path: Path
) -> None:
    with open_sweep(tmp_path / "out", small_config(seeds=(1,))):
        path = tmp_path / "out" / "config.json"
    fields = json.loads(path.read_text())
    here, fields[part][name] = fields[part][name], there
    path.write_text(json.dumps(fields))
    with pytest.raises(
        ValueError, match=re.escape(f"({name}: {there} there, {here} here); continue it where")
    ):
        run_fake(tmp_path, small_config(seeds=(1,)))


def test_a_kernel_of_another_release_keeps_nothing_from_going_on(tmp_path: Path) -> None:
    run_fake(tmp_path, small_config(seeds=(1,)))
    path = tmp_path / "out" / "config.json"
    fields = json.loads(path.read_text())
    fields["machine"]["kernel"] = "another"
    path.write_text(json.dumps(fields))
    assert len(run_fake(tmp_path, small_config(seeds=(1,)))) == 2


def test_what_has_timed_out_can_be_given_more_time(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:32", "fixed:2"), seeds=(1,), time_limit_seconds=1.0)
    run_fake(tmp_path, config)
    more = dataclasses.replace(config, time_limit_seconds=1.25)
    _, again = run_fake(tmp_path, more, retry_failed=True)
    assert again.reason == "time limit of 1.25 s"
    assert "--time-limit-seconds=1.25" in load_config(tmp_path / "out").command_line()


@pytest.mark.parametrize(
    ("links", "others"), [(("100mbit", "none"), False), (("100mbit", "emulated:100mbit"), True)]
)
def test_a_sweep_in_a_lab_tells_the_congestion_control_and_links_of_its_hosts(
    links: tuple[str, ...], others: bool, tmp_path: Path
) -> None:
    with open_sweep(tmp_path, small_config(links=links)):
        pass
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["lab"] == {"tcp": "cubic", "links": SHAPING}
    assert ("tcp" in fields["machine"]) == others
    report = write_report(tmp_path)
    assert '"tcp": "cubic"' in report.markdown.read_text()
    assert "&quot;tcp&quot;: &quot;cubic&quot;" in report.html.read_text()


def saved_before_labs_had_their_own(folder: Path, config: SweepConfig, tcp: str | None) -> None:
    """A sweep's folder as it was written when hosts of a lab had the machine's congestion control."""
    with open_sweep(folder, config):
        pass
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("lab", None)
    fields["machine"]["tcp"] = tcp
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("tcp", ["bbr", None])
def test_runs_with_another_congestion_control_are_not_mixed_with_those_of_labs_now(
    tcp: str | None, tmp_path: Path
) -> None:
    config = small_config(links=("emulated:100mbit", "100mbit"), seeds=(1,))
    saved_before_labs_had_their_own(tmp_path / "out", config, tcp)
    with pytest.raises(ValueError, match=rf"tcp: {tcp} there, cubic here.*another --output"):
        run_fake(tmp_path, config)
    assert load_results(tmp_path / "out") == []


def test_runs_on_links_of_another_shape_are_not_mixed_with_those_of_labs_now(tmp_path: Path) -> None:
    config = small_config(links=("100mbit",), seeds=(1,))
    with open_sweep(tmp_path / "out", config):
        path = tmp_path / "out" / "config.json"
    path.write_text(path.read_text().replace(SHAPING, "another shape"))
    with pytest.raises(
        ValueError, match=r"\(links: another shape there, htb.* here\); give another --output"
    ):
        run_fake(tmp_path, config)


def test_a_workload_that_was_edited_is_not_mixed_with_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "edited_workload.py"
    module.write_text("from mqgrad.trainers.workloads.digits import DigitsMLP\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = small_config(workloads=("edited_workload:DigitsMLP",), seeds=(1,))
    assert len(run_fake(tmp_path, config)) == 2
    module.write_text("from mqgrad.trainers.workloads.digits import DigitsMLP  # otherwise\n")
    with pytest.raises(ValueError, match=r"edited_workload: \w+ there, \w+ here"):
        run_fake(tmp_path, config)


def test_a_workload_that_is_edited_while_runs_are_carried_out_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "now_edited_workload.py"
    module.write_text("from mqgrad.trainers.workloads.digits import DigitsMLP\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = small_config(workloads=("now_edited_workload:DigitsMLP",), seeds=(1,))
    with pytest.raises(ValueError, match=r"a file has changed while .*now_edited_workload: "):
        run_fake(tmp_path, config, on_start=lambda run: module.write_text(f"# {run}"))
    assert load_results(tmp_path / "out") == []


def test_results_that_nothing_tells_of_are_not_taken_for_those_that_are_asked_for(tmp_path: Path) -> None:
    config = small_config(seeds=(1,))
    run_fake(tmp_path, config)
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds results\.jsonl.* and no config\.json"):
        run_fake(tmp_path, config)


def test_a_strangers_files_are_left_as_they_are(tmp_path: Path) -> None:
    """As of --output . in a project."""
    (log := tmp_path / "out" / "logs" / "serving-prod" / "model.log").parent.mkdir(parents=True)
    log.write_text("precious")
    with pytest.raises(ValueError, match=r"holds logs and no config\.json"):
        run_fake(tmp_path, small_config(seeds=(1,)))
    log.parent.parent.rename(tmp_path / "logs")
    (report := tmp_path / "out" / "report.md").write_text("my own")
    with pytest.raises(ValueError, match=r"holds report\.md and no config\.json"):
        run_fake(tmp_path, small_config(seeds=(1,)))
    assert report.read_text() == "my own"
    report.unlink()
    run_fake(tmp_path, small_config(seeds=(1,)))
    (tmp_path / "logs").rename(tmp_path / "out" / "logs")
    run_fake(tmp_path, small_config(seeds=(1,)))
    assert (tmp_path / "out" / "logs" / "serving-prod" / "model.log").read_text() == "precious"


def test_sweeps_without_a_lab_and_finished_ones_go_on_whatever_they_had(tmp_path: Path) -> None:
    config = small_config(seeds=(1,))
    saved_before_labs_had_their_own(tmp_path / "out", config, "bbr")
    rows = run_fake(tmp_path, config)
    assert len(rows) == 2
    config = small_config(links=("100mbit",), seeds=(1,))
    saved_before_labs_had_their_own(tmp_path / "other", config, "bbr")
    lines = [json.dumps(dataclasses.asdict(dataclasses.replace(row, link="100mbit"))) for row in rows]
    (tmp_path / "other" / "results.jsonl").write_text("\n".join(lines) + "\n")
    with open_sweep(tmp_path / "other", config, program=["false"]) as sweep:
        sweep.run()


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
        order = [run.system for run in config.runs()]
        stopped = order.index("fixed:6")
        assert controllers(calls) == order[: stopped + 1]
        assert [run.system for run in sweep.pending()] == order[stopped:]
    assert not any(Path("/proc", line.split()[0]).exists() for line in calls.read_text().splitlines())


@pytest.mark.parametrize(("system", "code"), [("fixed:6", None), ("fixed:8", 143)])
def test_a_sweep_that_is_asked_to_end_ends_as_by_the_signal_and_with_a_report(
    system: str, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = fake_program(tmp_path)
    monkeypatch.setattr("mqgrad.experiments.sweep.folder.default_program", lambda: program)
    config = small_config(systems=("fixed:32", system), seeds=(1,))
    console = Console(record=True, width=200)
    with pytest.raises(KeyboardInterrupt if code is None else SystemExit) as stopped:
        run_sweep(tmp_path / "out", config, False, console)
    assert getattr(stopped.value, "code", None) == code
    assert "the same command goes on: 1 runs are left" in console.export_text()
    assert "UNFINISHED: 1 of 2 runs are missing" in (tmp_path / "out" / "report.md").read_text()


def test_who_started_a_sweep_learns_that_runs_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = fake_program(tmp_path)
    monkeypatch.setattr("mqgrad.experiments.sweep.folder.default_program", lambda: program)
    config = small_config(systems=("fixed:32", "fixed:1"), seeds=(1,))
    console = Console(record=True, width=200)
    for retry_failed, remedy in ((False, "--retry-failed"), (True, "the same command")):
        with pytest.raises(
            RuntimeError, match=rf"1 of 2 runs crashed.*out of luck; {remedy} runs them again"
        ):
            run_sweep(tmp_path / "out", config, retry_failed, console)
    assert "report.html" in console.export_text()


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
        assert (row.outcome, row.iterations) == ("finished", [2, 4, 6, 8, 10]), row.reason
    assert "EMULATED" in (out / "report.md").read_text()
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page
    assert str(tmp_path) not in page
    assert "2 of them done" in CliRunner().invoke(app, command[1:]).stdout


@needs_lab
def test_a_real_sweep_on_shaped_hosts_counts_what_they_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is sent before training is noticed is not counted.
    monkeypatch.setattr("mqgrad.experiments.sweep.runner._POLL_SECONDS", 0.002)
    sizes = {"links": ("10mbit",), "iterations": 10, "settings": {"digits-mlp": {"width": 192}}}
    config = small_config(systems=("fixed:8", "plain-ddp"), seeds=(1,), **sizes)
    names = []

    class Noted(NetLab):
        def __enter__(self) -> NetLab:
            names.append(self.name)
            return super().__enter__()

    monkeypatch.setattr("mqgrad.experiments.sweep.server.NetLab", Noted)
    run_sweep(tmp_path, config, False, Console())
    assert names
    assert not set(names) & set(list_labs())  # other tests have labs of their own
    for row in load_results(tmp_path):
        assert (row.outcome, row.retried, row.iterations) == ("finished", "", [2, 4, 6, 8, 10]), row.reason
        assert len(row.interface_bytes) == config.hosts
        assert min(row.interface_bytes) >= row.wire_bytes > 0
    assert "links shaped in the kernel" in (tmp_path / "report.md").read_text()
