"""The demo, short, under a policy that is not learned here."""

import collections
import shutil
from pathlib import Path

import pytest
from fake_server import SIGNALS, fake_program
from rich.console import Console

from mqgrad.agents.config import TrainConfig
from mqgrad.experiments import demo
from mqgrad.experiments.sweep.folder import load_results
from mqgrad.policies.policy import policy_path


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "train": lambda config, resume: config.output / "model.zip",
        "export": lambda model, policy: shutil.copy(policy_path("default"), policy),
        "BUDGET_SECONDS": 0.3,
        "TESTED_ON": {"width": 8},
        "TEST_SEEDS": (101,),
        "OTHERS": (demo.FP32,),
    }.items():
        monkeypatch.setattr(demo, name, value)


def told_by_demo(output: Path) -> str:
    output.mkdir(exist_ok=True)
    console = Console(record=True, width=300, markup=False)
    try:
        demo.run_demo(output, 1.0, console)
    except KeyboardInterrupt:
        console.print("interrupted")
    return console.export_text()


@pytest.mark.usefixtures("short_demo")
def test_the_demo_does_not_do_again_what_it_finds_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "runs [1] on mine with seed every 8"  # words that would take a system's name apart
    assert f"policy {output / 'policy.mqg'}" in told_by_demo(output)
    assert [row.outcome for row in load_results(output / demo.COMPARISON)] == ["finished", "finished"]
    assert (output / "runs.png").read_bytes().startswith(b"\x89PNG")

    monkeypatch.setattr(demo, "train", lambda *_, **__: pytest.fail("it is done again"))
    monkeypatch.setattr("mqgrad.experiments.sweep.folder.default_program", lambda: ["false"])
    told = told_by_demo(output)
    for part in ("policy.mqg is there already", "2 runs, 2 of them done", "fp32 (plain-ddp)", "report.html"):
        assert part in told


@pytest.mark.usefixtures("short_demo")
def test_runs_that_an_interrupted_demo_has_made_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, calls = fake_program(tmp_path)
    monkeypatch.setattr("mqgrad.experiments.sweep.folder.default_program", lambda: program)
    monkeypatch.setattr(demo, "OTHERS", ("fixed:6", "fixed:32"))
    assert "the same command goes on" in told_by_demo(tmp_path / "out")
    monkeypatch.delitem(SIGNALS, "fixed:6")
    fake_program(tmp_path)
    policy = tmp_path / "out" / "policy.mqg"
    for times in (1, 2):
        told_by_demo(tmp_path / "out")
        asked = collections.Counter(line.split()[1] for line in calls.read_text().splitlines())
        assert asked == {str(policy): times, "fixed:32": times, "fixed:6": times + 1}
        policy.unlink()  # so that another is learned


@pytest.mark.usefixtures("short_demo")
def test_learning_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resumed = []

    def interrupted(config: TrainConfig, resume: bool) -> Path:
        resumed.append(resume)
        (config.output / "checkpoints" / "step_00000001").mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", interrupted)
    told = told_by_demo(tmp_path) + told_by_demo(tmp_path)
    assert told.count("the same command goes on\ninterrupted") == 2
    assert resumed == [False, True]
