"""The folder of a training run: what cannot be written, is taken, damaged or of another version is named."""

import dataclasses
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from toy_env import toy_env
from toy_training import config_for

from mqgrad.agents.build import algorithm_class, build_env
from mqgrad.agents.callbacks import LimitsCallback
from mqgrad.agents.checkpoint import (
    FORMAT_VERSION,
    check_settings,
    latest_checkpoint,
    load_checkpoint,
    load_model,
    load_settings,
    newest_model,
    save_checkpoint,
    save_settings,
)
from mqgrad.agents.config import TrainConfig
from mqgrad.agents.train import train
from mqgrad.envs.recovering_cluster import with_all_settings
from mqgrad.envs.settings import make_settings
from mqgrad.run_folder import check_file, only_process_in


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train(config_for(folder, total_steps=60, checkpoint_every=50), make_env=toy_env)
    return folder


def test_folders_that_cannot_be_written_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def never() -> gymnasium.Env:
        env = toy_env()
        env.reset = lambda **_: pytest.fail("the environment was started")
        return env

    for settings in ({"output": tmp_path / "file"}, {"tensorboard": tmp_path / "file" / "logs"}):
        config = config_for(tmp_path / "run")
        for name, value in settings.items():
            setattr(config, name, value)
        with pytest.raises(OSError, match=r"cannot write to .*file.*choose another"):
            train(config, make_env=never)


def test_a_process_that_is_killed_while_it_replaces_a_checkpoint_leaves_a_whole_one(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a run, which may have saved at this very step: it could not be resumed from half of it."""
    shutil.copytree(finished_run, run := tmp_path / "run")
    model = load_model(run / "model.zip", algorithm_class("dqn"), env := build_env(config_for(run), toy_env))
    model.load_replay_buffer(latest_checkpoint(run) / "replay_buffer.pkl")  # type: ignore[operator, attr-defined]

    def killed(folder: Path, **_: Any) -> None:
        next(folder.glob("*.json")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(run, model, seconds=1.0)
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None
    assert load_checkpoint(checkpoint, algorithm_class("dqn"), env).model.num_timesteps == 60
    save_checkpoint(run, model, seconds=1.0)
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["step_00000050", "step_00000060"]


def test_what_a_user_keeps_beside_checkpoints_is_none_of_them(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, run := tmp_path / "run")
    newest = latest_checkpoint(run)
    assert newest is not None
    kept = [newest.with_name(f"{newest.name}.damaged"), newest.with_name("step_99999999 before the change")]
    for copy in kept:
        copy.mkdir()
    assert latest_checkpoint(run) == newest
    train(config_for(run, total_steps=65), resume=True, make_env=toy_env)
    whole = [newest, newest.with_name("step_00000065")]
    assert set(newest.parent.iterdir()) == {*whole, *kept}


def test_a_run_with_nothing_left_to_learn_keeps_what_it_was_made_by(
    finished_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_run, run := tmp_path / "run")
    (run / "origin.json").write_text("{}")
    train(config_for(run, total_steps=60), resume=True, make_env=toy_env)
    assert (run / "origin.json").read_text() == "{}"
    train(config_for(run, total_steps=61), resume=True, make_env=toy_env)
    assert (run / "origin.json").read_text() != "{}"


@pytest.mark.parametrize("damage", ["half", "gone"])
@pytest.mark.parametrize("file", ["model.zip", "replay_buffer.pkl", "random_states.pt", "progress.json"])
def test_a_damaged_checkpoint_is_named(finished_run: Path, tmp_path: Path, file: str, damage: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None
    whole = (checkpoint / file).read_bytes()
    (checkpoint / file).unlink()
    if damage == "half":
        (checkpoint / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{checkpoint} cannot be read.*move that folder away"):
        train(config_for(run, total_steps=80), resume=True, make_env=toy_env)
    shutil.rmtree(checkpoint)  # as the message says: the one before it is whole
    train(config_for(run, total_steps=60), resume=True, make_env=toy_env)


def test_the_model_of_a_run_is_the_one_that_has_learned_longest(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert newest_model(finished_run) == finished_run / "model.zip"  # the last checkpoint has as many steps
    shutil.copytree(finished_run, run := tmp_path / "run")

    def stop_at_once(callback: LimitsCallback) -> bool:
        if callback.num_timesteps == 70:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(LimitsCallback, "_on_step", stop_at_once)
    with pytest.raises(KeyboardInterrupt):
        train(config_for(run, total_steps=80), resume=True, make_env=toy_env)
    checkpoint = run / "checkpoints" / "step_00000070"
    assert newest_model(run) == checkpoint / "model.zip"
    (run / "model.zip").unlink()
    assert newest_model(run) == checkpoint / "model.zip"
    (checkpoint / "model.zip").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"step_00000070/model\.zip is no model of Stable-Baselines3"):
        newest_model(run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(FileNotFoundError, match=r"neither model\.zip nor a checkpoint"):
        newest_model(run)


def test_a_damaged_configuration_is_named(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is no configuration"):
        train(config_for(run, total_steps=80), resume=True, make_env=toy_env)


def test_a_run_of_another_version_is_refused_with_the_remedy(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, run := tmp_path / "run")
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None
    edit(checkpoint / "progress.json", lambda fields: fields.pop("format_version"))
    before = (run / "config.json").read_text()
    refused = "start anew, or go on with the version of mqgrad that saved"
    with pytest.raises(
        ValueError, match=f"no format version, and format version {FORMAT_VERSION}.*{refused}"
    ):
        train(config_for(run, total_steps=80), resume=True, make_env=toy_env)
    assert (run / "config.json").read_text() == before  # for the version that saved it
    for change, told in (
        (lambda fields: fields.pop("output"), "TrainConfig lacks output"),
        (
            lambda fields: fields.update(output=str(run), colour="red", age=1),
            "TrainConfig also has age, colour",
        ),
    ):
        edit(run / "config.json", change)
        with pytest.raises(ValueError, match=f"{told}.*{refused}"):
            train(config_for(run, total_steps=80), resume=True, make_env=toy_env)


def test_a_run_of_a_version_with_fewer_settings_goes_on_with_their_defaults(
    finished_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_run, run := tmp_path / "run")
    config = TrainConfig.load(run / "config.json")
    edit(run / "config.json", lambda fields: [fields.pop(name) for name in ("time_price", "env")])
    assert TrainConfig.load(run / "config.json") == config
    train(config_for(run, total_steps=80), resume=True, make_env=toy_env)
    settings = load_settings(run)
    assert settings is not None
    older = ("compressor", "simulated", "opening")
    edit(run / "environment.json", lambda fields: [fields.pop(name) for name in older])
    assert load_settings(run) == dataclasses.replace(settings, opening=settings.interval)
    edit(run / "environment.json", lambda fields: fields.update(colour="red"))
    with pytest.raises(ValueError, match=r"environment\.json.*BitWidthSettings also has colour"):
        load_settings(run)


def test_settings_of_a_workload_that_were_not_saved_are_its_defaults(tmp_path: Path) -> None:
    """A run of a torchrun job, which saves all of them, could not go on locally, nor once there was one more."""
    settings = make_settings(None, {"workload": "digits-mlp"})
    save_settings(tmp_path, with_all_settings(settings))
    edit(tmp_path / "environment.json", lambda fields: fields["workload_settings"].pop("decay_iterations"))
    check_settings(tmp_path, settings)
    with pytest.raises(ValueError, match=r"environment with workload_settings=.*'width': 256.*'width': 32"):
        check_settings(tmp_path, dataclasses.replace(settings, workload_settings={"width": 32}))


def test_settings_of_a_workload_that_is_no_dataclass_are_compared_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqgrad.envs.recovering_cluster.make_workload", lambda name, **_: object())
    settings = make_settings(None, {"workload_settings": {"size": 64}})
    save_settings(tmp_path, settings)
    check_settings(tmp_path, settings)
    with pytest.raises(ValueError, match=r"workload_settings=.*64.*128"):
        check_settings(tmp_path, dataclasses.replace(settings, workload_settings={"size": 128}))


def test_a_device_is_written_to_where_its_folder_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/stdout, by who is not root."""

    def refuse(folder: Path) -> None:
        raise PermissionError(folder)

    monkeypatch.setattr("mqgrad.run_folder.check_writable", refuse)
    check_file(Path(os.devnull))
    with pytest.raises(PermissionError):
        check_file(Path("/dev/new"))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))


def test_a_second_process_is_kept_out_of_a_run_folder_until_the_first_has_died(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    taken = context.Event()

    def hold() -> None:
        with only_process_in(tmp_path):
            taken.set()
            time.sleep(60)

    other = context.Process(target=hold)
    other.start()
    assert taken.wait(30)
    with pytest.raises(ValueError, match=f"process {other.pid} is at work in {tmp_path}"):
        train(config_for(tmp_path), make_env=toy_env)
    other.kill()
    other.join()
    train(config_for(tmp_path, total_steps=5), make_env=toy_env)


def test_a_folder_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS that is mounted without them; there is no such file system to test on."""

    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=rf"{tmp_path} cannot be locked \(No locks available\).*local disk"):
        train(config_for(tmp_path), make_env=toy_env)
