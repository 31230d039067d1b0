"""What runs leave behind, where a write is cut short: the file as it was before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mqgrad.agents.checkpoint import save_settings
from mqgrad.agents.config import TrainConfig
from mqgrad.envs import BitWidthSettings
from mqgrad.experiments.netlab.link import LinkShape
from mqgrad.experiments.netlab.run import LabResult
from mqgrad.experiments.runs import RunRecord


def write_configuration(folder: Path) -> None:
    TrainConfig(output=folder, total_steps=1).save(folder / "config.json")


def write_environment(folder: Path) -> None:
    save_settings(folder, BitWidthSettings())


def write_record(folder: Path) -> None:
    RunRecord(controller="fixed:4", seed=1).write(folder / "record.json")


def write_result(folder: Path) -> None:
    result = LabResult(
        lab="test",
        command=["true"],
        link=LinkShape(),
        tcp="cubic",
        outcome="ok",
        status=0,
        seconds=1.0,
        hosts=[],
    )
    result.write(folder / "netlab.json")


@pytest.mark.parametrize("write", [write_configuration, write_environment, write_record, write_result])
def test_a_write_that_is_cut_short_leaves_the_file_as_it_was(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()

    def cut_short(path: Path, text: str, **_: object) -> None:
        with path.open("w") as cut:
            cut.write(text[: len(text) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(OSError, match="no space left"):
        write(tmp_path)
    assert file.read_bytes() == before
