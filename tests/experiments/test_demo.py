"""The demo: real runs, as short as they can be, under a policy that is not learned here."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from mqgrad.experiments import demo
from mqgrad.experiments.runs import RunRecord
from mqgrad.experiments.sweep.axes import System
from mqgrad.policies.policy import policy_path
from mqgrad.trainers import Distributed


def fake_export(model: Path, policy: Path) -> None:
    shutil.copy(policy_path("default"), policy)


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "train": lambda config, resume: config.output / "model.zip",
        "export": fake_export,
        "BUDGET_SECONDS": 0.3,
        "TESTED_ON": {"width": 8},
        "TEST_SEEDS": (101,),
        "OTHERS": {"fp32 DDP": demo.FP32},
    }.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.usefixtures("short_demo")
def test_runs_that_an_interrupted_demo_has_made_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, made = demo._run, []
    files = tmp_path / "policy.mqg", tmp_path / "runs.json"

    def interrupted(cluster: Distributed, system: System, seed: int) -> RunRecord:
        if len(made) == 1:
            raise KeyboardInterrupt
        return again(cluster, system, seed)

    def again(cluster: Distributed, system: System, seed: int) -> RunRecord:
        made.append(str(system))
        return run(cluster, system, seed)

    monkeypatch.setattr(demo, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path, 1.0, Console())
    monkeypatch.setattr(demo, "_run", interrupted)
    with monkeypatch.context() as changed:
        changed.setattr(demo, "git_revision", lambda: "another")
        assert not any(demo.earlier_runs(*files, Console()).values())
    monkeypatch.setattr(demo, "_run", again)
    console = Console(record=True, width=300)
    demo.run_demo(tmp_path, 1.0, console)
    assert len(made) == len(set(made)) == 2
    assert "1 of its runs are missing, and follow" in console.export_text()


@pytest.mark.usefixtures("short_demo")
def test_the_demo_does_not_do_again_what_it_finds_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.run_demo(tmp_path, 1.0, Console())
    assert (tmp_path / "runs.png").exists()
    done = {tmp_path / name: (tmp_path / name).stat().st_mtime_ns for name in ("policy.mqg", "runs.json")}

    for name in ("train", "Distributed"):
        monkeypatch.setattr(demo, name, lambda *_, **__: pytest.fail("it is done again"))
    console = Console(record=True, width=300)
    demo.run_demo(tmp_path, 1.0, console)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    told = console.export_text()
    assert all(f"{path} is there already" in told for path in done)
    assert "fp32 DDP" in told

    monkeypatch.setattr(demo, "BUDGET_SECONDS", 0.2)  # as of another version of the demo
    with pytest.raises(pytest.fail.Exception, match="it is done again"):
        demo.run_demo(tmp_path, 1.0, console)
    monkeypatch.setattr(demo, "BUDGET_SECONDS", 0.3)

    (tmp_path / "policy.mqg").touch()  # another policy than that of the runs
    with pytest.raises(pytest.fail.Exception, match="it is done again"):
        demo.run_demo(tmp_path, 1.0, console)
