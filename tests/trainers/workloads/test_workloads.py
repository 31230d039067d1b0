"""Workloads learn, shard and validate; no processes involved."""

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from mqgrad.trainers import Workload, make_workload, register_workload, workload_names
from mqgrad.trainers.workloads import workload as registry
from mqgrad.trainers.workloads.bytes_text import load_bytes
from mqgrad.trainers.workloads.digits import DigitsMLP, load_digits
from mqgrad.trainers.workloads.optimizers import OPTIMIZERS

SMALL_GPT = {"width": 32, "num_layers": 1, "num_heads": 2, "batch_size": 4, "warmup_iterations": 5}
SMALL_LSTM = {"width": 48, "num_layers": 1, "batch_size": 4, "warmup_iterations": 5}


def train(workload: Workload, iterations: int) -> list[float]:
    torch.manual_seed(0)
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    scheduler = workload.build_scheduler(optimizer)
    losses = []
    for batch in itertools.islice(workload.batches(0, 2, 0), iterations):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "settings", "iterations", "drop"),
    [
        ("digits-mlp", {}, 150, 0.8),
        ("digits-cnn", {}, 200, 0.8),
        ("bytes-gpt", SMALL_GPT, 60, 1.0),
        ("bytes-lstm", SMALL_LSTM, 60, 1.0),
    ],
)
def test_loss_falls(name: str, settings: dict, iterations: int, drop: float) -> None:
    losses = train(make_workload(name, **settings), iterations)
    assert sum(losses[:10]) / 10 - sum(losses[-10:]) / 10 > drop


@pytest.mark.parametrize("name", ["digits-cnn", "bytes-gpt"])
def test_learning_rates_fall_to_0_where_the_end_is_known(name: str) -> None:
    workload = make_workload(name, learning_rate=1.0, warmup_iterations=2, decay_iterations=8)
    optimizer = workload.build_optimizer(workload.build_model())
    scheduler = workload.build_scheduler(optimizer)
    rates = []
    for _ in range(10):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates[0] == 0.5  # of the warm-up, before anything has fallen
    assert rates[4] == pytest.approx(0.5)  # half way
    assert all(earlier > later for earlier, later in itertools.pairwise(rates[1:9]))
    assert rates[8:] == [0.0, 0.0]


@pytest.mark.parametrize("name", ["digits-mlp", "digits-cnn", "bytes-gpt", "bytes-lstm"])
def test_evaluation_of_an_untrained_model_is_chance(name: str) -> None:
    workload = make_workload(name)
    torch.manual_seed(0)
    model = workload.build_model()
    figures = workload.evaluate(model)
    chance = 5.545 if name.startswith("bytes") else 2.303  # ln 256 and ln 10
    assert figures["loss"] == pytest.approx(chance, abs=0.4)
    assert 0 <= figures["accuracy"] < 0.4
    assert model.training


@pytest.mark.parametrize(
    ("name", "at_least"),
    [
        ("digits-mlp", 1e5),
        ("digits-cnn", 1e5),
        ("bytes-gpt", 8e5),
        ("bytes-lstm", 8e5),
        ("bytes-gpt-large", 5e6),
    ],
)
def test_models_are_large_enough_for_the_link_to_matter(name: str, at_least: float) -> None:
    model = make_workload(name).build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) >= at_least


@pytest.mark.parametrize("name", ["digits-cnn", "bytes-gpt"])
def test_batches_repeat_for_a_seed_and_differ_between_ranks(name: str) -> None:
    def first(rank: int, seed: int) -> torch.Tensor:
        return next(make_workload(name).batches(rank, 2, seed))[0]

    assert torch.equal(first(0, 3), first(0, 3))
    assert not torch.equal(first(0, 3), first(0, 4))
    assert not torch.equal(first(0, 3), first(1, 3))


def test_held_out_digits_are_not_trained_on() -> None:
    data = load_digits()
    train_images = {image.numpy().tobytes() for image in data.train[0]}
    assert len(data.train[0]) + len(data.held_out[0]) == 1797
    assert sum(image.numpy().tobytes() in train_images for image in data.held_out[0]) == 0


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'digits-cmn'.*bytes-gpt.*digits-cnn, digits-mlp"):
        make_workload("digits-cmn")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batchsize": 3}, r"no setting 'batchsize'; it has .*batch_size"),
        ({"batch_size": 0}, r"batch_size must be a whole number of at least 1, not 0"),
        ({"batch_size": "8"}, r"batch_size must be .* not '8'"),
        ({"optimizer": "rmsprop"}, r"unknown optimizer 'rmsprop'; known: sgd, adam"),
        ({"learning_rate": float("nan")}, r"learning_rate must be .* not nan"),
        ({"momentum": -0.1}, r"momentum must be .* not -0.1"),
    ],
)
def test_invalid_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_workload("digits-mlp", **settings)


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"data_root '{tmp_path}' has 0 files matching '\*\.py'"):
        make_workload("bytes-gpt", data_root=str(tmp_path))


def test_of_few_files_of_text_the_last_one_is_held_out(tmp_path: Path) -> None:
    """It was the first, so that a model trained on ``valid.txt`` and not on ``train.txt``."""
    (tmp_path / "tests").mkdir()
    for name in ("train.txt", "valid.txt", "tests/more.txt"):
        (tmp_path / name).write_text(name)
    data = load_bytes(str(tmp_path), "*.txt", 100)
    assert (bytes(data.train), bytes(data.held_out)) == (b"tests/more.txttrain.txt", b"valid.txt")
    data = load_bytes(str(tmp_path), "*.txt", 5)  # of which there is enough before the last file
    assert (bytes(data.train), bytes(data.held_out)) == (b"tests", b"valid.txt")


def test_of_many_files_of_text_every_tenth_is_held_out(tmp_path: Path) -> None:
    for index in range(12):
        (tmp_path / f"{index:02d}.txt").write_text(f"{index:x}")
    data = load_bytes(str(tmp_path), "*.txt", 100)
    assert (bytes(data.train), bytes(data.held_out)) == (b"123456789b", b"0a")


def test_too_little_data_is_named(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    workload = make_workload("bytes-gpt", data_root=str(tmp_path))
    with pytest.raises(ValueError, match="context 64 is longer than the 6 bytes"):
        workload.batches(0, 2, 0)


def test_own_workload_by_reference_and_by_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REFERENCES", dict(registry._REFERENCES))
    first_weight = next(make_workload("faulty:Faulty", width=8).build_model().parameters())
    assert first_weight.shape == (100, 8)
    register_workload("mine", DigitsMLP)
    assert "mine" in workload_names()
    assert isinstance(make_workload("mine"), DigitsMLP)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module:f", "no module 'no_such_module'"),
        ("./faulty:Faulty", r"'./faulty' is a path; give .* 'faulty:Faulty', in its folder"),
        ("tests/support/faulty:Faulty", "give the name of the module, as 'faulty:Faulty'"),
        ("faulty.py:Faulty", "give the name of the module, as 'faulty:Faulty'"),
        (".faulty:Faulty", "'.faulty' is a path"),
        ("faulty:absent", "no callable 'absent'"),
        ("faulty:not_a_workload", "is a object without name, build_model"),
    ],
)
def test_bad_references_are_explained(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_workload(reference)


class Outer:
    class Inner(DigitsMLP):
        pass


@pytest.mark.parametrize(
    "factory",
    [lambda: DigitsMLP(), Outer.Inner, functools.partial(DigitsMLP, width=8)],
    ids=["lambda", "nested", "partial"],
)
def test_a_factory_that_workers_cannot_import_is_refused(factory: Any) -> None:
    with pytest.raises(ValueError, match="cannot be imported by worker processes"):
        register_workload("mine", factory)


@pytest.mark.parametrize("name", ["digits-mlp", "bytes-gpt", "bytes-gpt-large", "bytes-lstm"])
def test_an_optimizer_brings_its_own_learning_rate(name: str) -> None:
    chosen = {o: make_workload(name, optimizer=o, width=32) for o in OPTIMIZERS}
    built = {o: workload.build_optimizer(workload.build_model()) for o, workload in chosen.items()}
    assert {o: type(optimizer).__name__ for o, optimizer in built.items()} == {"sgd": "SGD", "adam": "AdamW"}
    rates = {o: optimizer.param_groups[0]["lr"] for o, optimizer in built.items()}
    assert rates["sgd"] > 10 * rates["adam"] > 0
    slow = make_workload(name, learning_rate=1e-5, width=32)
    assert slow.build_optimizer(slow.build_model()).param_groups[0]["lr"] == 1e-5


@pytest.mark.parametrize("name", ["digits-mlp", "bytes-gpt"])
def test_a_drawn_optimizer_follows_from_the_seed_of_the_run_and_has_its_own_learning_rate(name: str) -> None:
    workload = make_workload(name, optimizer="drawn", width=32)

    def build(seed: int) -> tuple[str, float]:
        torch.manual_seed(seed)
        optimizer = workload.build_optimizer(workload.build_model())
        return type(optimizer).__name__, optimizer.param_groups[0]["lr"]

    of_seeds = [build(seed) for seed in range(12)]
    assert of_seeds == [build(seed) for seed in range(12)]
    own = make_workload(name, optimizer="adam", width=32)
    adam = own.build_optimizer(own.build_model()).param_groups[0]["lr"]
    assert {kind for kind, _ in of_seeds} == {"SGD", "AdamW"}
    assert {rate for kind, rate in of_seeds if kind == "AdamW"} == {adam}


def test_a_workload_may_have_a_setting_that_is_called_name() -> None:
    with pytest.raises(ValueError, match="has no setting 'name'"):
        make_workload("digits-mlp", name="mine")
