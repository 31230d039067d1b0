"""Files that benchmarks write in the end: what cannot be written is told at the start."""

import argparse
import importlib
import os
import sys
from pathlib import Path

import pytest
from output_file import output_file

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


def test_a_file_that_is_there_is_replaced_and_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "old.json").touch()
    for path in (tmp_path / "old.json", tmp_path / "new.json", Path(os.devnull)):
        assert output_file(str(path)) == path
    for text in ("", str(tmp_path)):
        with pytest.raises(argparse.ArgumentTypeError, match="is a folder; give a file"):
            output_file(text)
