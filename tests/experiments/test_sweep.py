"""The comparison: its grid, its folder, and runs that fail."""

import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mqgrad.compressors import compressor_names
from mqgrad.controllers import controller_names
from mqgrad.experiments.compare_grids import GRIDS
from mqgrad.experiments.compare_options import (
    data_root_settings,
    make_config,
    oracle_as_fixed_widths,
    parse_budgets,
    parse_workload_settings,
    split_list,
    system_name,
    with_defaults,
)
from mqgrad.experiments.netlab_link import LinkRates
from mqgrad.experiments.report_pages import write_report
from mqgrad.experiments.sweep import Sweep, load_config, load_results
from mqgrad.experiments.sweep_cell import emulation, request_of, server_options
from mqgrad.experiments.sweep_config import SweepConfig
from mqgrad.experiments.sweep_grid import Cell, Link, System
from mqgrad.experiments.sweep_result import CellResult
from mqgrad.trainers.link import parse_emulation
from mqgrad.trainers.methods import DEFAULT_METHOD, method_names

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


def small_config(**changes: Any) -> SweepConfig:
    chosen: dict[str, Any] = {
        "systems": ("fixed:32", "fixed:4"),
        "workloads": ("digits-mlp",),
        "links": ("emulated:100mbit",),
        "seeds": (1, 2),
        "iterations": 15,
    }
    return SweepConfig(**{**chosen, **changes})


def fake_program(folder: Path) -> tuple[list[str], Path]:
    calls, script = folder / "calls", folder / "fake.py"
    script.write_text(FAKE_SERVER.format(calls=str(calls)))
    calls.touch()
    return [sys.executable, str(script)], calls


def controllers(calls: Path) -> list[str]:
    return [line.split()[1] for line in calls.read_text().splitlines()]


def run_fake(folder: Path, config: SweepConfig, **options: Any) -> list[CellResult]:
    program, _ = fake_program(folder)
    Sweep(folder / "out", config, program=program).run(**options)
    return load_results(folder / "out")


def test_the_grid_has_every_combination_seed_by_seed() -> None:
    config = small_config(
        workloads=("digits-mlp", "digits-cnn"), optimizers=("own", "adam"), links=("none", "1gbit")
    )
    cells = list(config.cells())
    assert len(cells) == len(set(cells)) == 32
    assert [cell.seed for cell in cells[:4]] == [1, 1, 2, 2]
    assert [cell.group for cell in cells[::4]] == config.groups()
    assert len(config.groups()) == 8
    assert str(cells[-1]) == "digits-cnn adam @ 1gbit, fixed:4, seed 2"
    no_choice = small_config(workloads=("logreg",), optimizers=("sgd", "adam"))
    assert [str(group) for group in no_choice.groups()] == ["logreg @ emulated:100mbit"]


def test_a_system_is_a_controller_a_compressor_both_or_a_method() -> None:
    assert System.parse("goodput")[:3] == ("goodput", "quantized", "ddp")
    assert System.parse("qsgd:bucket_size=128")[:3] == (None, "qsgd:bucket_size=128", "ddp")
    assert System.parse("goodput on qsgd")[:3] == ("goodput", "qsgd", "ddp")
    assert System.parse("local-sgd:period=4")[:3] == (None, "quantized", "local-sgd:period=4")
    assert System.parse("gravac").kind == "compressors"  # which is a controller, too
    assert system_name("controllers", "gravac") == "gravac on quantized"
    assert system_name("compressors", "gravac") == "gravac"
    cell = Cell("digits-mlp", "adam", "emulated:none", "goodput on qsgd", 7)
    config = small_config(settings={"digits-mlp": {"width": 16}})
    words = server_options(cell, config)
    assert {("--set", "width=16"), ("--set", 'optimizer="adam"')} <= set(itertools.pairwise(words))
    asked = request_of(cell, config, Path("r.json"))
    assert (asked.controller, asked.compressor, asked.seed, asked.link) == ("goodput", "qsgd", 7, None)
    assert System.parse("qsgd").controller_of_run() == "fixed:4"
    with_setting = "dgc:ratio=0.1 with momentum=0,width=8"
    assert System.parse(with_setting) == (None, "dgc:ratio=0.1", "ddp", ("momentum=0", "width=8"))
    words = server_options(cell._replace(system=with_setting), config)
    assert {("--set", "width=8"), ("--set", "momentum=0")} <= set(itertools.pairwise(words))
    several = small_config(systems=("fixed:32", with_setting, "fixed:4"))
    order = [(each.system.partition(":")[0], each.seed) for each in several.cells()]
    assert order == [*(("fixed", seed) for seed in (1, 1, 2, 2)), ("dgc", 1), ("dgc", 2)]
    assert System.parse("fp16").controller_of_run() == "fixed:16"
    assert System.parse("local-sgd").controller_of_run() is None


def test_a_list_of_one_kind_of_system_is_the_whole_list() -> None:
    defaults = with_defaults({}, "quick")
    assert "goodput" in defaults["controllers"]
    given = with_defaults({"compressors": ["qsgd"], "iterations": 5}, "workloads")
    assert (given["controllers"], given["compressors"], given["iterations"]) == ((), ["qsgd"], 5)
    assert given["methods"] == ()
    assert given["optimizers"] == ("adam",)
    assert with_defaults({"workloads": ["logreg"]}, "workloads")["optimizers"] == ("own",)
    assert "budget_seconds" not in given
    with pytest.raises(ValueError, match=r"unknown grid 'all'; known: quick, systems"):
        with_defaults({}, "all")


def grid_config(grid: str) -> SweepConfig:
    chosen = with_defaults({}, grid)
    return make_config(chosen, list(chosen["settings"]), None, Console())


def test_the_grids_have_every_system_of_the_registries() -> None:
    systems = []
    for grid in GRIDS:
        config = grid_config(grid)
        config.check_names()
        systems += [System.parse(name) for name in config.systems]
    assert {(each.controller or "").partition(":")[0] for each in systems} >= set(controller_names())
    assert {each.compressor.partition(":")[0] for each in systems} == set(compressor_names())
    assert {each.method.partition(":")[0] for each in systems} == {DEFAULT_METHOD, *method_names()}


def test_the_oracle_stands_for_the_fixed_widths_it_is_the_best_of() -> None:
    named = ["fixed:32", "oracle:widths=4+32", "goodput", "fp16"]
    assert oracle_as_fixed_widths(named) == ("fixed:32", "fixed:4", "goodput", "fp16")
    assert oracle_as_fixed_widths(["goodput"]) == ("goodput",)
    whole = oracle_as_fixed_widths(["oracle"])
    assert whole == tuple(f"fixed:{bits}" for bits in (*range(1, 9), 16, 32))
    with pytest.raises(ValueError, match="in hindsight only"):
        System.parse("oracle on qsgd").check(None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"links": ("100mb",)}, "100mb.*emulated:RATE"),
        ({"links": ("emulated:0mbit",)}, "a rate must be above 0"),
        ({"systems": ("fixed:32", "fixed:32")}, "twice"),
        ({"workloads": ()}, "no workloads"),
        ({"hosts": 1}, "1 hosts"),
        ({"iterations": None}, "nothing ends"),
        ({"budget_seconds": {"digits-mlp": -1.0}}, "-1.0"),
        ({"budget_seconds": {"digits-mlp": float("nan")}}, "budget_seconds of digits-mlp .*finite.* not nan"),
        ({"time_limit_seconds": float("nan")}, "time_limit_seconds .* not nan"),
        ({"time_limit_seconds": float("inf")}, "time_limit_seconds .* not inf"),
        ({"budget_seconds": {"bytes-gpt": 1.0}}, "bytes-gpt, which is not compared"),
    ],
)
def test_a_wrong_grid_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": ("fixed:4",)}, "add plain-ddp"),
        ({"systems": ("fixed:4", "fixd:32")}, "unknown controller 'fixd:32'"),
        ({"systems": ("fixed:32", "magic")}, "known: .*goodput.*qsgd"),
        ({"systems": ("fixed:32", "goodput on magic")}, "unknown compressor 'magic'; known: .*qsgd"),
        ({"optimizers": ("rmsprop",)}, "unknown optimizer 'rmsprop'; known: sgd, adam"),
        ({"systems": ("fixed:32", "gone.mqg")}, "gone.mqg"),
        ({"workloads": ("digits-rnn",)}, "known: .*digits-cnn"),
        ({"settings": {"digits-mlp": {"depth": 3}}}, "no setting 'depth'"),
    ],
)
def test_unknown_names_are_found_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        Sweep(tmp_path / "out", small_config(**changes))
    assert not (tmp_path / "out").exists()


def test_links_are_read() -> None:
    assert Link.parse("1gbit") == ("1gbit", False, LinkRates((1000.0,)))
    assert Link.parse("none").emulation() == ("emulated:none", True, LinkRates((None,)))
    assert Link.parse("emulated:50mbit").emulation().rates == LinkRates((50.0,))
    switching = Link.parse("100mbit/1gbit@10s")
    assert switching.rates == LinkRates((100.0, 1000.0), 10.0)
    assert parse_emulation(emulation(switching)).switch_seconds == 10.0
    with pytest.raises(ValueError, match="to or from none"):
        Link.parse("emulated:none/1gbit@10s")


def test_a_data_root_goes_to_the_workloads_that_read_one() -> None:
    names = ["digits-mlp", "cifar10-cnn", "bytes-gpt"]
    items = data_root_settings(Path("/data"), names)
    settings = parse_workload_settings([*items, "bytes-gpt:data_root="], names)
    assert settings == {"cifar10-cnn": {"data_root": "/data"}, "bytes-gpt": {"data_root": ""}}
    assert data_root_settings(None, names) == []


def test_the_options_of_the_command_are_read() -> None:
    assert split_list("fixed:2, linear-ramp:start=2,end=8,a/b=c.mqg") == [
        "fixed:2",
        "linear-ramp:start=2,end=8",
        "a/b=c.mqg",
    ]
    assert parse_budgets("6", ["a", "b"]) == {"a": 6.0, "b": 6.0}
    assert parse_budgets("a=6,b=1.5", ["a", "b"]) == {"a": 6.0, "b": 1.5}
    settings = parse_workload_settings(["a:width=64", "batch_size=8"], ["a", "b"])
    assert settings == {"a": {"width": 64, "batch_size": 8}, "b": {"batch_size": 8}}


def test_the_report_names_the_command_that_makes_it() -> None:
    config = small_config(
        systems=("fixed:32", "qsgd", "local-sgd", "fixed:4"),
        settings={"digits-mlp": {"width": 16}},
        budget_seconds={"digits-mlp": 1.5},
    )
    words = shlex.split(config.command_line())
    assert words[:3] == ["mqgrad", "compare", "--output=FOLDER"]
    assert {
        "--controllers=fixed:32,fixed:4",
        "--compressors=qsgd",
        "--methods=local-sgd",
        "--budget-seconds=digits-mlp=1.5",
        "--seeds=2",
    } <= set(words)
    assert "--set=digits-mlp:width=16" in words


def test_a_run_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    systems = ("fixed:32", "fixed:1", "fixed:2", "fixed:3", "fixed:5", "fixed:4")
    config = small_config(systems=systems, seeds=(1,), time_limit_seconds=4.0)
    results = {result.system: result for result in run_fake(tmp_path, config)}
    processes = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert (
        len(set(processes)) == 5
    )  # new ones after each run that failed, twice where the one before was still open
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
    assert "4 s" in results["fixed:2"].reason
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
    assert [result.outcome for result in run_fake(tmp_path, config)] == ["finished", "finished"]
    assert not list((tmp_path / "out" / "logs").iterdir())


def test_finished_runs_are_skipped_and_failed_ones_run_again_on_request(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:32", "fixed:1"), seeds=(1,))
    program, calls = fake_program(tmp_path)
    sweep = Sweep(tmp_path / "out", config, program=program)
    sweep.run()
    sweep.run()
    assert controllers(calls) == ["fixed:32", "fixed:1", "fixed:1"]
    sweep.run(retry_failed=True)
    assert controllers(calls) == ["fixed:32", "fixed:1", "fixed:1", "fixed:1"]
    assert len(load_results(tmp_path / "out")) == 2


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
    with pytest.raises(ValueError, match=r"iterations: 15 there, 20 here"):
        Sweep(tmp_path / "out", small_config(seeds=(1,), iterations=20))
    assert load_config(tmp_path / "out") == small_config(seeds=(1,))
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {"revision", "versions", "machine"} <= set(fields)
    assert {"cpu", "cores", "kernel"} == set(fields["machine"])


def test_ctrl_c_leaves_a_folder_to_go_on_from_and_no_process(tmp_path: Path) -> None:
    program, calls = fake_program(tmp_path)
    config = small_config(systems=("fixed:32", "fixed:6", "fixed:4"), seeds=(1,))
    sweep = Sweep(tmp_path / "out", config, program=program)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    assert controllers(calls) == ["fixed:32", "fixed:6"]
    assert [cell.system for cell in sweep.pending()] == ["fixed:6", "fixed:4"]
    assert not any(Path("/proc", line.split()[0]).exists() for line in calls.read_text().splitlines())


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
