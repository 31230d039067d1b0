"""What benchmarks have in common: files that cannot be written are told at the start, and others say where they come
from."""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

import pytest
from script import output_file, print_markdown, write_report

OPTIONS = {
    "cuda_checks": "--output",
    "cuda_codec": "--output",
    "cuda_timings": "--output",
    "cuda_training": "--output",
    "env_overhead": "--json",
    "episodes": "--json",
    "hook_overhead": "",
    "kernel_speed": "--json",
    "overlap_trace": "",
    "scale_choices": "",
    "stability": "--json",
    "wire": "",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_benchmark_refuses_a_file_in_no_folder_before_it_measures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *filter(None, [OPTIONS[name]]), "/nowhere/figures.json"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 2
    assert (
        "'/nowhere/figures.json' cannot be written: there is no writable /nowhere" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("stability", ["--widths", "1,abc"], "argument --widths: "),
        ("stability", ["--set", "width"], "'width' is not NAME=VALUE"),
        ("wire", ["wire.json", "--widths", "1,abc"], "argument --widths: "),
        ("wire", ["wire.json", "--rates", "fast"], "--rates fast: "),
        ("episodes", ["--policies", "nowhere.mqg"], "policy file 'nowhere.mqg' does not exist"),
        ("episodes", ["--widths", "1,abc"], "'abc' is not a number"),
    ],
)
def test_a_mistyped_option_is_told_in_a_line(
    name: str,
    options: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *options])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 2
    assert f"error: {told}" in capsys.readouterr().err


def test_a_file_that_is_there_is_replaced_and_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "old.json").touch()
    for path in (tmp_path / "old.json", tmp_path / "new.json", Path(os.devnull)):
        assert output_file(str(path)) == path
    for text in ("", str(tmp_path)):
        with pytest.raises(argparse.ArgumentTypeError, match="is a folder; give a file"):
            output_file(text)


def test_a_report_says_where_it_comes_from_and_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    write_report(file, {"seconds": [1.0]}, launcher="torchrun --nproc-per-node 2")
    report = json.loads(file.read_text())
    assert report["seconds"] == [1.0]
    assert report["command"].startswith("torchrun --nproc-per-node 2 ")
    assert {"script_revision", "revision", "versions", "machine", "date"} <= set(report)
    with pytest.raises(TypeError):
        write_report(file, {"seconds": object()})
    assert json.loads(file.read_text()) == report


def test_a_table_is_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    print_markdown(("bits", "seconds"), [(1, "0.5"), (2, "0.7")])
    assert capsys.readouterr().out == "| bits | seconds |\n|---|---|\n| 1 | 0.5 |\n| 2 | 0.7 |\n"
