"""Rows of results: whose record they are made of."""

import dataclasses
import json
from pathlib import Path

import pytest
from comparison import small_config

from mqgrad.experiments.runs import RunPoint, RunRecord
from mqgrad.experiments.sweep.axes import Run
from mqgrad.experiments.sweep.result import Ending, RunResult, result_of
from mqgrad.experiments.sweep.runner import request_of

SYSTEMS = ("fixed:4", "goodput on qsgd", "powersgd:rank=1", "plain-ddp", "fixed:4 every 8")
FOREIGN = {"seed": 8, "controller": "fixed:7", "compressor": "terngrad", "method": "slowmo:period=2"}


def row(system: str, folder: Path, **changes: object) -> RunResult:
    """Of a run that ended well, and whose record is of what was asked for but for the changes."""
    run = Run("digits-mlp", "own", "emulated:100mbit", system, 1)
    request = request_of(run, small_config(systems=(system,)), folder / "record.json")
    point = RunPoint(
        iteration=5, elapsed_seconds=1.0, bits=4, train_loss=1.0, heldout={"loss": 1.0}, wire_bytes=8.0
    )
    record = dataclasses.replace(RunRecord.of(request), points=[point], outcome="finished", **changes)  # type: ignore[arg-type]
    fields = record.to_dict()
    Path(request.record).write_text(json.dumps(fields))
    return result_of(run, Ending("ok", ""), request, wall_seconds=1.0)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_record_of_what_was_asked_for_is_a_row(system: str, tmp_path: Path) -> None:
    assert (row(system, tmp_path).outcome, row(system, tmp_path).losses) == ("finished", [1.0])


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_record_of_another_run_is_none(system: str, name: str, tmp_path: Path) -> None:
    foreign = row(system, tmp_path, **{name: FOREIGN[name]})
    assert (foreign.outcome, foreign.losses) == ("crashed", [])
    assert f"that of another run, with {name} {FOREIGN[name]!r} in place of" in foreign.reason
