"""Logistic regression: its smoothness matrices are exact, and its data and files are what they claim."""

import itertools
from pathlib import Path

import pytest
import torch

from mqgrad.trainers import make_workload
from mqgrad.trainers.workloads.logreg import LogisticRegression


def hessian(workload: LogisticRegression, rank: int, world_size: int, x: torch.Tensor) -> torch.Tensor:
    """Of f_r at x, by automatic differentiation in float64."""
    features, labels = (t.double() for t in workload.shard(rank, world_size))
    model = workload.build_model().double()

    def objective(flat: torch.Tensor) -> torch.Tensor:
        margins = torch.func.functional_call(model, {"weight": flat.view(1, -1)}, features)
        log_loss = torch.log1p(torch.exp(-labels * margins.squeeze(1))).mean()
        return log_loss + workload.mu / 2 * flat.square().sum()

    return torch.func.hessian(objective)(x)


@pytest.mark.parametrize("split", ["uniform", "by-label"])
@pytest.mark.parametrize("rank", [0, 2])
def test_smoothness_matrix_is_the_hessian_at_zero_and_bounds_it_elsewhere(split: str, rank: int) -> None:
    workload = LogisticRegression(mu=0.01, split=split)
    smoothness = workload.smoothness_matrix(rank, 3)
    d = len(smoothness)
    torch.testing.assert_close(hessian(workload, rank, 3, torch.zeros(d, dtype=torch.float64)), smoothness)
    x = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slack = smoothness - hessian(workload, rank, 3, x)
    assert torch.linalg.eigvalsh(slack)[0] > -1e-9
    assert slack.trace() > 0.1  # and not because both are the same


def test_full_batches_give_the_exact_gradient_and_descent_converges() -> None:
    workload = LogisticRegression(batch_size=None, mu=0.1)
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    shards = [next(workload.batches(rank, 2, seed=rank)) for rank in range(2)]
    assert all(len(labels) == 1437 // 2 for _, labels in shards)
    norms = []
    for _ in range(300):
        optimizer.zero_grad()
        sum(workload.loss(model, shard) / 2 for shard in shards).backward()  # type: ignore[union-attr]
        norms.append(float(model.weight.grad.norm()))
        optimizer.step()
    # Gradient descent at 1/L contracts ‖∇f‖ by at least 1 − mu/L an iteration.
    rate = 1 - workload.mu * optimizer.param_groups[0]["lr"]
    assert norms[-1] < 1e-3 * norms[0]
    assert all(after <= before * rate + 1e-6 for before, after in itertools.pairwise(norms))
    assert workload.evaluate(model)["accuracy"] > 0.8


def test_loss_has_the_regularisation_and_evaluation_has_not() -> None:
    workload = LogisticRegression(mu=2.0, batch_size=None)
    plain = LogisticRegression(mu=0.0, batch_size=None)
    model = workload.build_model()
    torch.nn.init.ones_(model.weight)
    batch = next(workload.batches(0, 2, 0))
    penalty = workload.loss(model, batch) - plain.loss(model, batch)
    assert penalty.item() == pytest.approx(65.0, rel=1e-5)
    assert workload.evaluate(model) == plain.evaluate(model)


def test_shards_are_disjoint_and_by_label_they_differ() -> None:
    for split, expected in (("uniform", (0.3, 0.7)), ("by-label", (0.0, 1.0))):
        workload = LogisticRegression(split=split)
        rows = [row.numpy().tobytes() for rank in range(2) for row in workload.shard(rank, 2)[0]]
        assert len(set(rows)) > 0.99 * len(rows)  # the data set itself has hardly any duplicates
        positive = [float((workload.shard(rank, 2)[1] > 0).float().mean()) for rank in range(2)]
        assert all(expected[0] <= share <= expected[1] for share in positive)
        assert (positive[1] - positive[0] > 0.9) == (split == "by-label")


def test_minibatches_repeat_for_a_seed_and_come_from_the_shard() -> None:
    workload = LogisticRegression(batch_size=16)
    first, again, other = (next(workload.batches(1, 2, seed))[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    shard = {row.numpy().tobytes() for row in workload.shard(1, 2)[0]}
    assert all(row.numpy().tobytes() in shard for row in first)


def test_a_libsvm_file(tmp_path: Path) -> None:
    file = tmp_path / "toy.svm"
    file.write_text("".join(f"{2 if i % 3 else 4} 1:{i % 3} 4:{i}\n" for i in range(20)))
    workload = make_workload("logreg", data_path=str(file), batch_size=4)
    assert isinstance(workload, LogisticRegression)
    features, labels = workload.shard(0, 1)
    assert features.shape == (16, 5)  # four of them and the constant; every fifth line is held out
    assert set(labels.tolist()) == {-1.0, 1.0}
    for row, label in zip(features.tolist(), labels.tolist(), strict=True):
        assert row == [row[3] % 3, 0.0, 0.0, row[3], 1.0]
        assert label == (-1.0 if row[3] % 3 else 1.0)
    assert 0 <= workload.evaluate(workload.build_model())["accuracy"] <= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a file: give a LibSVM file"),
        ("hello, world\n", "is not a LibSVM file"),
        ("1 1:2\n" * 20, "20 lines of 1 classes"),
        ("1 1:2\n2 1:1\n", "2 lines of 2 classes"),
        ("".join(f"{i % 2} 100000000:1\n" for i in range(20)), "too many to be held densely"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "bad.svm"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        make_workload("logreg", data_path=str(file))
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "random"}, "split 'random' is unknown"),
        ({"mu": -1}, "mu must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
    ],
)
def test_invalid_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_workload("logreg", **settings)


@pytest.mark.parametrize("features", [3, 300])
def test_the_default_rate_is_one_over_the_largest_eigenvalue(features: int, tmp_path: Path) -> None:
    """Of files with few lines and many features, too, without a matrix of features × features."""
    lines = (f"{i % 2} {1 + i % 2}:{i} {features}:{(-1) ** i * 0.5}" for i in range(40))
    (tmp_path / "data.svm").write_text("\n".join(lines) + "\n")
    workload = LogisticRegression(data_path=str(tmp_path / "data.svm"), mu=0.01)
    rate = workload.build_optimizer(workload.build_model()).param_groups[0]["lr"]
    assert rate == pytest.approx(
        1 / float(torch.linalg.eigvalsh(workload.smoothness_matrix(0, 1))[-1]), rel=1e-9
    )
