"""``logreg``: regularised logistic regression, a convex problem whose smoothness matrices are known exactly."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mqgrad.checks import check_choice, check_count, check_not_negative, check_positive

from .data_files import check_paths
from .digits import load_digits
from .schedules import warmup_constant
from .sharding import shuffled_indices
from .workload import Batch

SPLITS = ("uniform", "by-label")
_HELD_OUT_EVERY = 5  # of a LibSVM file; digits bring their own held-out images
_SPLIT_SEED = 0  # the partition is part of the problem, not of the run
_LARGEST_DENSE = 2**28  # numbers: 1 GiB as float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogisticRegression:
    """Minimise f = (1/W) Σ f_r over ranks, f_r(x) = (1/m) Σ log(1 + exp(−y_i·a_iᵀx)) + (mu/2)·‖x‖².

    The m examples of a rank are the same in every iteration and in every run. Features have a constant 1 appended,
    so that x holds the intercept. Without ``data_path`` the task is to tell the digits 5–9 (y = +1) from 0–4.

    Raises:
        ValueError: an invalid setting, or a file that is missing or not a LibSVM file of two classes.
    """

    batch_size: int | None = 32
    """Examples per rank and iteration; None takes all of the rank's examples, for exact gradients."""
    mu: float = 1e-3
    """L2 regularisation, which is also the strong convexity of f."""
    learning_rate: float | None = None
    """None takes 1/L, with L the largest eigenvalue of the smoothness matrix of all training examples."""
    data_path: str = ""
    """A LibSVM file with two classes, of which every fifth line is held out; digits when empty."""
    split: str = "uniform"
    """How examples are dealt to the ranks: ``uniform``, at random; ``by-label``, sorted, so that ranks differ."""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_count(batch_size=self.batch_size)
        if self.learning_rate is not None:
            check_positive(learning_rate=self.learning_rate)
        check_not_negative(mu=self.mu)
        check_choice("split", self.split, SPLITS)
        check_paths(data_path=self.data_path)
        if self.data_path:
            load_libsvm(self.data_path)  # fails here, before any worker has started

    @property
    def name(self) -> str:
        return "logreg"

    def build_model(self) -> nn.Module:
        """One linear layer without bias, at x = 0: every run starts at the same point."""
        model = nn.Linear(self._data.train[0].shape[1], 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """Plain gradient descent."""
        rate = self.learning_rate
        if rate is None:
            rate = 1 / (_largest_curvature(self.data_path) + self.mu)
        return SGD(model.parameters(), lr=rate)

    def build_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return warmup_constant(optimizer, 1)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """Features float32 [batch_size, d], labels −1 or +1 as float32 [batch_size]."""
        features, labels = self.shard(rank, world_size)
        if self.batch_size is None:
            return iter(lambda: (features, labels), None)
        order = shuffled_indices(
            len(labels), batch_size=self.batch_size, rank=0, world_size=1, seed=seed * world_size + rank
        )
        return ((features[i], labels[i]) for i in order)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """f_r, or its estimate from the batch, with the regularisation."""
        features, labels = batch
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        return _log_loss(model(features), labels) + self.mu / 2 * penalty

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` (nats, without the regularisation) and ``accuracy`` on held-out examples."""
        features, labels = self._data.held_out
        with torch.no_grad():
            margins = model(features)
        accuracy = (margins.squeeze(1) * labels > 0).float().mean()
        return {"loss": _log_loss(margins, labels).item(), "accuracy": accuracy.item()}

    def shard(self, rank: int, world_size: int) -> Batch:
        """All examples of one rank, as many as every other rank has: features [m, d], labels [m].

        Raises:
            ValueError: there are fewer examples than ranks.
        """
        features, labels = self._data.train
        m = len(labels) // world_size
        if m == 0:
            raise ValueError(f"{len(labels)} training examples cannot be dealt to {world_size} ranks")
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        if self.split == "uniform":
            mine = order[rank::world_size][:m]
        else:
            mine = order[labels[order].argsort(stable=True)][rank * m : (rank + 1) * m]
        return features[mine], labels[mine]

    def smoothness_matrix(self, rank: int, world_size: int) -> torch.Tensor:
        """L_r = (1/4m)·AᵀA + mu·I of one rank, A its features [m, d]: float64 [d, d], symmetric.

        f_r(y) ≤ f_r(x) + ⟨∇f_r(x), y − x⟩ + ½·‖y − x‖² in the norm of L_r, because the second derivative of
        log(1 + e^z) is at most 1/4; at x = 0 the Hessian is L_r itself. The order of coordinates is that of the
        model's only parameter. Source: Wang, Safaryan and Richtárik 2021, generalised linear models.
        """
        a = self.shard(rank, world_size)[0].double()
        return a.T @ a / (4 * len(a)) + self.mu * torch.eye(a.shape[1], dtype=torch.float64)

    @property
    def _data(self) -> "BinaryData":
        return load_data(self.data_path)


@dataclasses.dataclass(frozen=True)
class BinaryData:
    """Features float32 [N, d], the last of them 1; labels −1 or +1 as float32 [N]."""

    train: Batch
    held_out: Batch


def load_data(data_path: str) -> BinaryData:
    """That of a LibSVM file, or digits where the path is empty."""
    return load_libsvm(data_path) if data_path else load_binary_digits()


@functools.cache
def _largest_curvature(data_path: str) -> float:
    """The largest eigenvalue of (1/4N)·AᵀA, of all N training examples, without that d × d matrix."""
    from scipy.sparse.linalg import svds  # type: ignore[import-untyped]

    a = load_data(data_path).train[0].double().numpy()
    start = np.random.default_rng(0).standard_normal(min(a.shape))  # the same on all ranks
    (largest,) = svds(a, k=1, v0=start, return_singular_vectors=False)
    return float(largest) ** 2 / (4 * len(a))


@functools.cache
def load_binary_digits() -> BinaryData:
    """Handwritten digits, +1 for 5–9: 1437 to train on, 64 pixels from 0 to 1 and the constant."""

    def binary(images: torch.Tensor, digits: torch.Tensor) -> Batch:
        return _append_one(images.flatten(1)), torch.where(digits >= 5, 1.0, -1.0)

    digits = load_digits()
    return BinaryData(train=binary(*digits.train), held_out=binary(*digits.held_out))


@functools.cache
def load_libsvm(path: str) -> BinaryData:
    """Read a LibSVM file (``label index:value ...`` a line); the larger of its two labels becomes +1.

    Raises:
        ValueError: no such file, or one that cannot be read as two classes.
    """
    from sklearn.datasets import load_svmlight_file

    if not Path(path).is_file():
        raise ValueError(
            f"data_path {path!r} is not a file: give a LibSVM file, or leave it out to train on digits"
        )
    try:
        sparse, targets = load_svmlight_file(path, dtype=np.float32)
    except (ValueError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(
            f"data_path {path!r} is not a LibSVM file ('label index:value ...' a line): {error}"
        ) from error
    if sparse.shape[0] * sparse.shape[1] > _LARGEST_DENSE:
        raise ValueError(
            f"data_path {path!r} has {sparse.shape[0]} × {sparse.shape[1]} features, too many to be held densely"
        )
    classes = np.unique(targets)
    if len(classes) != 2 or len(targets) < 2 * _HELD_OUT_EVERY:
        raise ValueError(
            f"data_path {path!r} has {len(targets)} lines of {len(classes)} classes; at least "
            f"{2 * _HELD_OUT_EVERY} lines of exactly 2 are needed"
        )
    features = _append_one(torch.from_numpy(sparse.toarray()))
    labels = torch.from_numpy(np.where(targets == classes[1], 1.0, -1.0).astype(np.float32))
    held_out = torch.arange(len(labels)) % _HELD_OUT_EVERY == 0
    return BinaryData(
        train=(features[~held_out], labels[~held_out]), held_out=(features[held_out], labels[held_out])
    )


def _append_one(features: torch.Tensor) -> torch.Tensor:
    return torch.cat([features, torch.ones(len(features), 1)], dim=1)


def _log_loss(margins: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean of log(1 + exp(−y·aᵀx)); margins aᵀx are [m, 1]."""
    return F.softplus(-labels * margins.squeeze(1)).mean()
