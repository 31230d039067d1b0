"""The grid of a comparison: its runs, its systems, and what is refused before anything runs."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
from comparison import small_config

from mqgrad.experiments.compare.options import system_name
from mqgrad.experiments.netlab.link import LinkRates
from mqgrad.experiments.sweep.axes import Link, Run, System
from mqgrad.experiments.sweep.folder import open_sweep
from mqgrad.experiments.sweep.runner import emulation, request_of, server_options
from mqgrad.trainers.link import parse_emulation


def test_the_grid_has_every_combination_seed_by_seed() -> None:
    config = small_config(
        workloads=("digits-mlp", "digits-cnn"), optimizers=("own", "adam"), links=("none", "1gbit")
    )
    runs = list(config.runs())
    assert len(runs) == len(set(runs)) == 32
    assert [run.seed for run in runs[:4]] == [1, 1, 2, 2]
    assert [run.cell for run in runs[::4]] == config.cells()
    assert len(config.cells()) == 8
    assert {str(run) for run in runs[-2:]} == {
        f"digits-cnn adam @ 1gbit, {system}, seed 2" for system in config.systems
    }
    many = [
        run.system for run in small_config(systems=("fixed:32", *map("fixed:{}".format, range(1, 9)))).runs()
    ]
    assert sorted(many[:9]) == sorted(many[9:])
    assert many[:9] != many[9:]  # so that a slow minute falls on others
    no_choice = small_config(workloads=("logreg",), optimizers=("sgd", "adam"))
    assert [str(cell) for cell in no_choice.cells()] == ["logreg @ emulated:100mbit"]


def test_a_system_is_a_controller_a_compressor_both_or_a_method() -> None:
    assert System.parse("goodput")[:3] == ("goodput", "quantized", "ddp")
    assert System.parse("qsgd:bucket_size=128")[:3] == (None, "qsgd:bucket_size=128", "ddp")
    assert System.parse("goodput on qsgd")[:3] == ("goodput", "qsgd", "ddp")
    assert System.parse("local-sgd:period=4")[:3] == (None, "quantized", "local-sgd:period=4")
    every = System.parse("fixed:2 on qsgd every 8 with momentum=0")
    assert every == ("fixed:2", "qsgd", "ddp:period=8", ("momentum=0",))
    ruled = System.parse("fixed:1,interval=5 every 16,period_rule=adacomm")
    assert ruled == ("fixed:1,interval=5", "quantized", "ddp:period=16,period_rule=adacomm", ())
    assert System.parse("powersgd:rank=2 every 8") == (None, "powersgd:rank=2", "ddp:period=8", ())
    assert System.parse("fixed:1 frozen 16") == ("fixed:1", "quantized", "ddp:frozen_every=16", ())
    path = "top-k:0.1/mine on 4 with all every 8/policy.mqg"
    assert System.parse(path) == (path, "quantized", "ddp", ())
    in_rounds = System.parse(f"{path}:falls_back=false on qsgd every 8 with momentum=0")
    assert in_rounds == (f"{path}:falls_back=false", "qsgd", "ddp:period=8", ("momentum=0",))
    assert System.parse("default every 8").kind == "controllers"
    assert System.parse("default every 8").has_width
    assert system_name("controllers", "default every 8") == "default every 8"
    assert system_name("controllers", "gravac every 8") == "gravac on quantized every 8"
    with pytest.raises(ValueError, match="local-sgd is a method"):
        System.parse("local-sgd every 8")
    assert System.parse("gravac").kind == "compressors"  # which is a controller, too
    assert system_name("controllers", "gravac") == "gravac on quantized"
    assert system_name("compressors", "gravac") == "gravac"
    run = Run("digits-mlp", "adam", "emulated:none", "goodput on qsgd", 7)
    config = small_config(settings={"digits-mlp": {"width": 16}})
    words = server_options(run, config)
    assert {("--set", "width=16"), ("--set", 'optimizer="adam"')} <= set(itertools.pairwise(words))
    limit = f"{config.limit_of(run):g}"  # an evaluation may take as long as its run
    assert ("--timeout-seconds", limit) in itertools.pairwise(words)
    asked = request_of(run, config, Path("r.json"))
    assert (asked.controller, asked.compressor, asked.seed, asked.link) == ("goodput", "qsgd", 7, None)
    assert System.parse("qsgd").controller_of_run() == "fixed:4"
    with_setting = "dgc:ratio=0.1 with momentum=0,width=8"
    assert System.parse(with_setting) == (None, "dgc:ratio=0.1", "ddp", ("momentum=0", "width=8"))
    words = server_options(run._replace(system=with_setting), config)
    assert {("--set", "width=8"), ("--set", "momentum=0")} <= set(itertools.pairwise(words))
    several = small_config(systems=("fixed:32", with_setting, "fixed:4"))
    order = [(each.system.partition(":")[0], each.seed) for each in several.runs()]
    assert order == [*(("fixed", seed) for seed in (1, 1, 2, 2)), ("dgc", 1), ("dgc", 2)]
    assert System.parse("fp16").controller_of_run() == "fixed:16"
    assert System.parse("local-sgd").controller_of_run() is None
    for name in ("fixed:32", "goodput", "qsgd", "goodput on minmax", "quantized:gone=1"):
        assert System.parse(name).has_width, name
    for name in (
        "local-sgd",
        "plain-ddp",
        "top-k:0.01",
        "powersgd:rank=2",
        "dgc with momentum=0",
        "fp16",
        "none",
    ):
        assert not System.parse(name).has_width, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"links": ("100mb",)}, "100mb.*emulated:RATE"),
        ({"links": ("emulated:0mbit",)}, "emulated:0mbit.*a rate of 0 Mbit/s is too low"),
        ({"systems": ("fixed:32", "fixed:32")}, "twice"),
        ({"workloads": ()}, "no workloads"),
        ({"hosts": 1}, "1 hosts"),
        ({"iterations": None}, "nothing ends"),
        ({"budget_seconds": {"digits-mlp": -1.0}}, "-1.0"),
        ({"budget_seconds": {"digits-mlp": float("nan")}}, "budget_seconds of digits-mlp .*finite.* not nan"),
        ({"time_limit_seconds": float("nan")}, "time_limit_seconds .* not nan"),
        (
            {"iterations": None, "budget_seconds": {"digits-mlp": 3.0}, "time_limit_seconds": 3.0},
            "time_limit_seconds 3 ends every run whose budget is 3 s",
        ),
        ({"time_limit_seconds": float("inf")}, "time_limit_seconds .* not inf"),
        ({"budget_seconds": {"bytes-gpt": 1.0}}, "bytes-gpt, which is not compared"),
        ({"budget_seconds": {"digits-mlp@1gbit": 1.0}}, "digits-mlp@1gbit, which is not compared"),
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
        ({"systems": ("fixed:32", "fixed:4", "quantized")}, "'fixed:4' and 'quantized' are the same system"),
        ({"systems": ("fixed:32", "magic")}, "known: .*goodput.*qsgd"),
        ({"systems": ("fixed:32", "goodput on magic")}, "unknown compressor 'magic'; known: .*qsgd"),
        (
            {"systems": ("fixed:32", "l-greco on minmax")},
            r"'l-greco' on 'minmax': LGreCo chooses for each parameter among 1, .*, and MinMax takes one width "
            r"for all parameters; compressors that have these widths: ecq-sgd, qsgd, quantized$",
        ),
        (
            {"systems": ("fixed:32", "smoothness-layers on rotation")},
            r"'smoothness-layers' on 'rotation': .* Rotated has 1, 2, 3, 4; .*: ecq-sgd, qsgd, quantized; or",
        ),
        (
            {"systems": ("fixed:32", "goodput on minmax")},
            r"'goodput' on 'minmax': Goodput chooses among .*32 bits, and MinMax has 1, .*: ecq-sgd, qsgd, .*",
        ),
        (
            {"systems": ("fixed:32", "default on qsgd")},
            r"'default' on 'qsgd': FrozenPolicy chooses among 1/4, .*: quantized; or",
        ),
        (
            {"systems": ("fixed:32", "backup-workers:backups=2")},
            "2 backups leave none of 2 ranks: .* at most 1",
        ),
        (
            {"systems": ("fixed:32", "smoothness")},
            "smoothness matrices, which workload 'digits-mlp' does not have",
        ),
        (
            {"workloads": ("logreg",), "budget_seconds": {}, "optimizers": ("adam",)},
            "none of logreg has a setting 'optimizer'",
        ),
        ({"optimizers": ("rmsprop",)}, "unknown optimizer 'rmsprop'; known: sgd, adam"),
        ({"systems": ("fixed:32", "gone.mqg")}, "gone.mqg"),
        ({"workloads": ("digits-rnn",)}, "known: .*digits-cnn"),
        ({"settings": {"digits-mlp": {"depth": 3}}}, "no setting 'depth'"),
    ],
)
def test_unknown_names_are_found_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with (
        pytest.raises((ValueError, OSError), match=message),
        open_sweep(tmp_path / "out", small_config(**changes)),
    ):
        pass
    assert not (tmp_path / "out").exists()


def test_links_are_read() -> None:
    assert Link.parse("1gbit") == ("1gbit", False, LinkRates((1000.0,)))
    assert Link.parse("none").emulation() == ("emulated:none", True, LinkRates((None,)))
    assert Link.parse("emulated:50mbit").emulation().rates == LinkRates((50.0,))
    switching = Link.parse("100mbit/1gbit@10s")
    assert switching.rates == LinkRates((100.0, 1000.0), 10.0)
    assert parse_emulation(emulation(switching)).switch_seconds == 10.0
    fast = Link.parse("emulated:999.5678gbit/0.1mbit@1234567.5s")
    emulated = parse_emulation(emulation(fast))
    assert (emulated.mbit_per_s, emulated.switch_seconds) == (999567.8, 1234567.5)
    with pytest.raises(ValueError, match="to or from none"):
        Link.parse("emulated:none/1gbit@10s")


def test_the_budget_of_a_link_goes_before_that_of_the_workload() -> None:
    budgets = {"digits-mlp": 4.0, "digits-mlp@emulated:100mbit": 12.0}
    config = small_config(links=("emulated:100mbit", "emulated:1gbit"), budget_seconds=budgets)
    runs = {run.link: run for run in config.runs()}
    assert {link: request_of(run, config, Path("x")).budget_seconds for link, run in runs.items()} == {
        "emulated:100mbit": 12.0,
        "emulated:1gbit": 4.0,
    }
    assert config.limit_of(runs["emulated:100mbit"]) > config.limit_of(runs["emulated:1gbit"])


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
