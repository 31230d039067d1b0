"""The command ``mqgrad train``: what it takes up again, and with which limits."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mqgrad.agents.checkpoint import save_settings
from mqgrad.agents.config import TrainConfig
from mqgrad.envs.settings import make_settings
from mqgrad.policies.policy import load_policy

Invoke = Callable[..., tuple[int, str, str]]


def test_a_resumed_run_refuses_options_that_say_otherwise(tmp_path: Path, invoke: Invoke) -> None:
    env = {"workload": "digits-mlp", "workload_settings": {"width": 8}, "num_workers": 2, "widths": (2, 32)}
    TrainConfig(output=tmp_path, total_steps=1, env=env).save(tmp_path / "config.json")
    save_settings(tmp_path, make_settings(None, env))
    differs = {
        ("--workload", "digits-cnn"): "digits-mlp",
        ("--set", "width=9"): "{'width': 8}",
        ("--set", "batch_size=9"): "{'batch_size': 32}",  # its default
        ("--algo", "dqn"): "ppo",
        ("--interval", "7"): "5",  # the default
        ("--budget-seconds", "6"): "5.0",
        ("--widths", "2+4"): "[2, 32]",
        ("--action-repeat", "4"): "1",
        ("--seed", "1"): "0",
    }
    for option, own in differs.items():
        code, _, error = invoke("train", str(tmp_path), "--resume", *option)
        assert code == 2
        assert option[0] in error
        assert f"was started with {own}" in error
    same = [
        "--workload",
        "digits-mlp",
        "--set",
        "width=8",
        "--set",
        "batch_size=32",
        "--widths",
        "2+32",
        "--seed",
        "0",
    ]
    same += ["--algo", "PPO", "--interval", "5", "--budget-seconds", "5", "--link-latency-ms", "0"]
    code, _, error = invoke("train", str(tmp_path), "--resume", *same)
    assert code == 2
    assert "no checkpoint to resume from" in error


def test_a_simulated_training_is_repeated_by_its_seed_and_resumed(tmp_path: Path, invoke: Invoke) -> None:
    options = ["--workload", "digits-mlp", "--set", "width=16", "--simulated-compute-ms", "10"]
    options += ["--link-mbit-per-s", "5:10", "--budget-seconds", "0.5", "--seed", "7"]
    policies = []
    for name in ("one", "other"):
        folder = str(tmp_path / name)
        code, _, error = invoke("train", folder, *options, "--total-steps", "64", "--warm-start", "none")
        assert code == 0, error
        code, _, error = invoke("export", folder, f"{folder}.mqg")
        assert code == 0, error
        policies.append(load_policy(f"{folder}.mqg"))
    assert policies[0].provenance["environment"]["simulated"]
    for (one, _), (other, _) in zip(policies[0].layers, policies[1].layers, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    code, _, error = invoke("train", str(tmp_path / "one"), "--resume", *options[:4], "--total-steps", "65")
    assert code == 0, error
    options[options.index("10")] = "20"
    code, _, error = invoke("train", str(tmp_path / "one"), "--resume", *options, "--total-steps", "66")
    assert code == 2
    assert "--simulated-compute-ms asks for" in error


def test_a_policy_is_trained_with_the_timeout_and_goes_on_with_another(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[TrainConfig] = []
    monkeypatch.setattr(
        "mqgrad.experiments.training.train_policy", lambda config, resume: trained.append(config)
    )
    folder = str(tmp_path)
    invoke("train", folder, "--total-steps", "1", "--timeout-seconds", "300")
    trained[-1].save(tmp_path / "config.json")
    invoke("train", folder, "--resume")
    invoke("train", folder, "--resume", "--timeout-seconds", "600")
    invoke("train", folder, "--resume", "--total-steps", "2", "--timeout-seconds", "900")
    assert [config.env["timeout_seconds"] for config in trained] == [300, 300, 600, 900]
    assert trained[-1].total_steps == 2
