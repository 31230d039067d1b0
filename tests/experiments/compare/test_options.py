"""The options of `mqgrad compare`, and the grids that it has by name."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import typer
from labs import needs_lab
from rich.console import Console
from typer.testing import CliRunner

from mqgrad.compressors import compressor_names
from mqgrad.controllers import controller_names
from mqgrad.experiments.cli import app
from mqgrad.experiments.compare.grids import GRIDS
from mqgrad.experiments.compare.options import (
    available_links,
    budgets_by_name,
    data_root_settings,
    make_config,
    oracle_as_fixed_widths,
    parse_budgets,
    parse_workload_settings,
    split_list,
    systems_on,
    with_defaults,
)
from mqgrad.experiments.netlab.iproute import NetLabError
from mqgrad.experiments.settings import parse_settings
from mqgrad.experiments.sweep.axes import System
from mqgrad.experiments.sweep.config import SweepConfig
from mqgrad.trainers.methods import DEFAULT_METHOD, method_names

OF_THE_GRID = {("", ""): 4, ("", "100mbit"): 12}
"""Budgets of ``links``."""


def test_a_list_of_one_kind_of_system_is_the_whole_list() -> None:
    defaults = with_defaults({}, "quick")
    assert "goodput" in defaults.controllers
    given = with_defaults({"compressors": ("qsgd",), "iterations": 5}, "workloads")
    assert (given.controllers, given.compressors, given.iterations) == ((), ("qsgd",), 5)
    assert given.methods == ()
    assert given.optimizers == ("adam",)
    assert with_defaults({"workloads": ("logreg",)}, "workloads").optimizers == ("own",)
    assert given.budget_seconds == {}
    with pytest.raises(ValueError, match=r"unknown grid 'all'; known: quick, links"):
        with_defaults({}, "all")


def test_a_policy_in_a_folder_named_as_a_setting_is_no_setting() -> None:
    assert split_list("dq-sgd:budget=4,start=2,lr=0.1/a.mqg") == ["dq-sgd:budget=4,start=2", "lr=0.1/a.mqg"]


def test_settings_are_json_or_what_python_writes() -> None:
    items = ["a=1e-2", "b=true", "c=False", "d=None", "e=null", "f=false alarm", "g=[1]"]
    settings = {"a": 0.01, "b": True, "c": False, "d": None, "e": None, "f": "false alarm", "g": [1]}
    assert parse_settings(items) == settings


def test_some_workloads_of_a_grid_keep_what_it_says_of_them() -> None:
    chosen = with_defaults({"workloads": ("bytes-gpt",)}, "workloads")
    assert (chosen.optimizers, chosen.budget_seconds) == (("adam",), {("bytes-gpt", ""): 12})
    assert chosen.settings == ("bytes-gpt:evaluation_bytes=4096",)
    others = with_defaults({"workloads": ("logreg",)}, "workloads")
    assert (others.optimizers, others.budget_seconds, others.settings) == (("own",), {}, ())
    assert with_defaults({"workloads": ("logreg",)}, "links").budget_seconds == OF_THE_GRID


def test_a_link_may_have_a_budget_of_its_own() -> None:
    assert with_defaults({"links": ("1gbit",)}, "links").budget_seconds == {("", ""): 4}
    assert with_defaults({"links": ("emulated:100mbit",)}, "links").budget_seconds == OF_THE_GRID
    assert parse_budgets("4, @100mbit=12,logreg@100mbit/1gbit@0.75s=2") == {
        **OF_THE_GRID,
        ("logreg", "100mbit/1gbit@0.75s"): 2,
    }
    with pytest.raises(typer.BadParameter, match="'6,@1gbit=2,8' has two budgets"):
        parse_budgets("6,@1gbit=2,8")
    with pytest.raises(typer.BadParameter, match="'=x' is not SECONDS"):
        parse_budgets("4,=x")


@pytest.mark.parametrize(
    ("text", "links", "written"),
    [
        ("6", ["1gbit"], '{"logreg": 6.0, "digits-cnn": 6.0}'),
        ("logreg=2,4", ["1gbit"], '{"logreg": 2.0, "digits-cnn": 4.0}'),
        ("logreg=6,digits-cnn=1.5", ["1gbit"], '{"logreg": 6.0, "digits-cnn": 1.5}'),
        (
            "digits-cnn@100mbit=1,4,@100mbit=12,logreg=2",
            ["100mbit", "1gbit"],
            '{"logreg": 2.0, "digits-cnn": 4.0, "logreg@100mbit": 12.0, "digits-cnn@100mbit": 1.0}',
        ),
        (
            "logreg=2,digits-cnn=3,logreg@100mbit=12",
            ["emulated:100mbit"],
            '{"logreg": 2.0, "digits-cnn": 3.0, "logreg@emulated:100mbit": 12.0}',
        ),
    ],
)
def test_budgets_are_written_by_workload_and_link(text: str, links: list[str], written: str) -> None:
    """As they always were: a folder that was begun earlier is gone on with only where they are the same."""
    budgets = budgets_by_name(parse_budgets(text), ["logreg", "digits-cnn"], links)
    assert json.dumps(budgets) == written


def test_the_budgets_of_a_grid_are_written_as_they_always_were() -> None:
    budgets = budgets_by_name(GRIDS["links"].budget_seconds, ["digits-cnn"], ["100mbit", "1gbit"])
    assert json.dumps(budgets) == '{"digits-cnn": 4.0, "digits-cnn@100mbit": 12.0}'


def test_other_seeds_can_be_asked_for() -> None:
    chosen = with_defaults({"first_seed": 201, "seeds": 2}, "links")
    config = make_config(chosen, list(chosen.settings), None, Console())
    assert config.seeds == (201, 202)
    assert "--first-seed=201" in config.command_line()
    from_zero = make_config(dataclasses.replace(chosen, first_seed=0), list(chosen.settings), None, Console())
    assert "--first-seed=0" in from_zero.command_line()


def grid_config(grid: str) -> SweepConfig:
    chosen = with_defaults({}, grid)
    return make_config(chosen, list(chosen.settings), None, Console())


def test_the_grids_have_every_system_of_the_registries() -> None:
    systems = []
    for grid in GRIDS:
        config = grid_config(grid)
        config.check_names()
        systems += [System.parse(name) for name in config.systems]
    assert {(each.controller or "").partition(":")[0] for each in systems} >= set(controller_names())
    assert {each.compressor.partition(":")[0] for each in systems} == set(compressor_names())
    assert {each.method.partition(":")[0] for each in systems} == {DEFAULT_METHOD, *method_names()}


@pytest.mark.parametrize("grid", GRIDS)
def test_the_command_of_a_report_makes_the_same_comparison(grid: str) -> None:
    """The order of systems included, by which a folder is gone on with."""
    config = grid_config(grid)
    names = [name for kind in config._systems_by_kind().values() for name in kind]
    assert tuple(names) == config.systems


def test_without_root_every_link_is_emulated_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    console = Console(record=True, width=200)
    assert available_links(["100mbit"], console) == ["emulated:100mbit"]
    assert "all links are emulated in the transport: " in console.export_text()


@needs_lab
def test_where_the_kernel_refuses_root_a_lab_every_link_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without the capabilities, or where a module is missing."""

    def refuses(*arguments: str) -> str:
        raise NetLabError(f"ip {' '.join(arguments)}: Operation not permitted")

    assert available_links(["100mbit"], Console()) == ["100mbit"]
    monkeypatch.setattr("mqgrad.experiments.netlab.lab.ip", refuses)
    console = Console(record=True, width=200)
    assert available_links(["100mbit"], console) == ["emulated:100mbit"]
    assert "Operation not permitted" in console.export_text()


LINKS = {"100mbit", "1gbit", "100mbit/1gbit@0.75s", "none"}


def test_the_grids_have_every_system_on_every_link() -> None:
    links: dict[str, set[str]] = {}
    for grid in GRIDS:
        config = grid_config(grid)
        for name in config.systems:
            each = System.parse(name)
            names = (each.controller, each.compressor, each.method)
            for known in {(name or "").partition(":")[0] for name in names}:
                links.setdefault(known, set()).update(config.links)
    assert {name: missing for name, seen in links.items() if (missing := LINKS - seen)} == {}


def test_the_oracle_stands_for_the_fixed_widths_it_is_the_best_of() -> None:
    named = ["fixed:32", "oracle:widths=4+32", "goodput", "fp16"]
    assert oracle_as_fixed_widths(named) == ("fixed:32", "fixed:4", "goodput", "fp16")
    assert oracle_as_fixed_widths(["goodput"]) == ("goodput",)
    whole = oracle_as_fixed_widths(["oracle"])
    assert whole == tuple(f"fixed:{bits}" for bits in (*range(1, 9), 16, 32))
    with pytest.raises(ValueError, match="in hindsight only"):
        System.parse("oracle on qsgd").check(None, hosts=2)


def test_what_an_emulated_link_cannot_pace_is_left_out_with_a_notice() -> None:
    console, systems = Console(record=True, width=200), ("fixed:4", "plain-ddp:hook=powersgd,rank=4")
    assert systems_on(["none", "100mbit"], systems, console) == systems
    assert systems_on(["emulated:100mbit"], systems, console) == ("fixed:4",)
    assert "powersgd,rank=4" in console.export_text()


def test_a_data_root_goes_to_the_workloads_that_read_one() -> None:
    names = ["digits-mlp", "cifar10-cnn", "bytes-gpt"]
    items = data_root_settings(Path("/data"), names)
    settings = parse_workload_settings([*items, "bytes-gpt:data_root="], names)
    assert settings == {"cifar10-cnn": {"data_root": "/data"}, "bytes-gpt": {"data_root": ""}}
    assert data_root_settings(None, names) == []
    with pytest.raises(typer.BadParameter, match="none of digits-mlp, logreg reads its data from a folder"):
        data_root_settings(Path("/data"), ["digits-mlp", "logreg"])


def test_the_options_of_the_command_are_read() -> None:
    assert split_list("fixed:1,interval=5 every 16,period_rule=adacomm:2,goodput") == [
        "fixed:1,interval=5 every 16,period_rule=adacomm:2",
        "goodput",
    ]
    assert split_list("fixed:2, linear-ramp:start=2,end=8,a/b=c.mqg") == [
        "fixed:2",
        "linear-ramp:start=2,end=8",
        "a/b=c.mqg",
    ]
    assert split_list("fixed:1", "lr=0.1/policy.mqg") == ["fixed:1", "lr=0.1/policy.mqg"]
    assert split_list("fixed:2,fixed:4", "goodput") == ["fixed:2", "fixed:4", "goodput"]
    assert parse_budgets("6") == {("", ""): 6.0}
    assert parse_budgets("a=6,b=1.5") == {("a", ""): 6.0, ("b", ""): 1.5}
    settings = parse_workload_settings(["a:width=64", "batch_size=8"], ["a", "b"])
    assert settings == {"a": {"width": 64, "batch_size": 8}, "b": {"batch_size": 8}}


def test_a_list_given_twice_is_not_only_its_last_part(tmp_path: Path) -> None:
    """``--controllers a --controllers b`` compared b alone, without a word."""
    words = [
        "compare",
        "--output",
        str(tmp_path),
        "--controllers",
        "no-such-rule",
        "--controllers",
        "fixed:1",
    ]
    assert "no-such-rule" in str(CliRunner().invoke(app, words).exception)
