"""The bytes of the Python standard library's sources, for models that predict the next one."""

import dataclasses
import functools
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mqgrad.checks import check_count

from .data_files import check_paths
from .optimizers import ChosenOptimizer
from .schedules import warmup_cosine, warmup_inverse_sqrt
from .sharding import shuffled_indices
from .workload import Batch

_HELD_OUT_EVERY = 10  # every tenth file is held out, from the first; of fewer, the last
_SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
}  # of the standard library


@dataclasses.dataclass(frozen=True, kw_only=True)
class BytesText(ChosenOptimizer):
    """Predict the next byte; everything but the model. Subclasses give ``name`` and ``build_model``.

    Raises:
        ValueError: an invalid setting, or a ``data_root`` without enough matching files.
    """

    learning_rates: ClassVar[Mapping[str, float]] = {"adam": 2e-3, "sgd": 0.1}

    batch_size: int = 8
    """Sequences per rank and iteration."""
    context: int = 64
    """Bytes per sequence."""
    width: int = 128
    """Size of the embedding and of the hidden layers."""
    num_layers: int = 4
    optimizer: str = "adam"
    weight_decay: float = 0.01
    warmup_iterations: int = 100
    decay_iterations: int = 0
    """The learning rate falls to 0 within these, as half a cosine does: the iterations of a whole training. 0: it
    falls as 1/√iteration."""
    data_root: str = ""
    """Folder to read text from; the running Python's standard library when empty, without its tests."""
    file_pattern: str = "*.py"
    """Files to read below ``data_root``, in the order of their paths. Every tenth is held out, from the first; of
    fewer than ten, the last."""
    max_bytes: int = 4 * 2**20
    """Training data is cut off here."""
    evaluation_bytes: int = 16 * 2**10
    """How much of the held-out files an evaluation reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(
            batch_size=self.batch_size,
            context=self.context,
            width=self.width,
            num_layers=self.num_layers,
            max_bytes=self.max_bytes,
            evaluation_bytes=self.evaluation_bytes,
        )
        check_count(0, warmup_iterations=self.warmup_iterations, decay_iterations=self.decay_iterations)
        check_paths(data_root=self.data_root, file_pattern=self.file_pattern)
        list_files(self.data_root, self.file_pattern)  # fails here, before any worker has started

    def build_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        if self.decay_iterations:
            return warmup_cosine(optimizer, self.warmup_iterations, self.decay_iterations)
        return warmup_inverse_sqrt(optimizer, self.warmup_iterations)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """Bytes and the bytes that follow them, both int64 [batch_size, context]."""
        windows = self._windows(self._load().train, "training")
        order = shuffled_indices(
            len(windows), batch_size=self.batch_size, rank=rank, world_size=world_size, seed=seed
        )
        return (_inputs_and_targets(windows[i]) for i in order)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy in nats per byte."""
        tokens, targets = batch
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` (nats per byte) and ``accuracy`` on held-out files."""
        loss, correct, count = 0.0, 0, 0
        model.eval()
        with torch.no_grad():
            for chunk in self._evaluation_windows().split(64):
                tokens, targets = _inputs_and_targets(chunk)
                logits = model(tokens)
                loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
                correct += int((logits.argmax(dim=-1) == targets).sum())
                count += targets.numel()
        model.train()
        return {"loss": loss / count, "accuracy": correct / count}

    def _windows(self, data: torch.Tensor, part: str) -> torch.Tensor:
        """Consecutive windows, uint8 [N, context + 1]; neighbours share one byte, a target and then an input."""
        if len(data) <= self.context:
            raise ValueError(
                f"context {self.context} is longer than the {len(data)} bytes of {part} data there are "
                "(every tenth file of data_root is held out, from the first; of fewer than ten, the last)"
            )
        return data.unfold(0, self.context + 1, self.context)

    def _evaluation_windows(self) -> torch.Tensor:
        """``evaluation_bytes`` worth of held-out windows, spread evenly over the held-out files."""
        windows = self._windows(self._load().held_out, "held-out")
        wanted = min(max(self.evaluation_bytes // self.context, 1), len(windows))
        return windows[torch.linspace(0, len(windows) - 1, wanted).long()]

    def _load(self) -> "BytesData":
        return load_bytes(self.data_root, self.file_pattern, self.max_bytes)


@dataclasses.dataclass(frozen=True)
class BytesData:
    """Text as uint8 [bytes]."""

    train: torch.Tensor
    held_out: torch.Tensor


@functools.cache
def list_files(data_root: str, file_pattern: str) -> tuple[Path, ...]:
    """Matching files below ``data_root`` in sorted order; of the standard library without packages and tests.

    Raises:
        ValueError: fewer than two files: one to train on and one to hold out; or a pattern that is empty or absolute.
    """
    if not file_pattern or Path(file_pattern).is_absolute():
        raise ValueError(f"file_pattern {file_pattern!r} must be a pattern below data_root, such as '*.txt'")
    root = Path(data_root or sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for path in root.rglob(file_pattern)
        if path.is_file() and (data_root or not _is_skipped(path.relative_to(root)))
    )
    if len(files) < 2:
        raise ValueError(
            f"data_root {str(root)!r} has {len(files)} files matching {file_pattern!r}, at least 2 are needed: "
            "set data_root to a folder of text and file_pattern to its names"
        )
    return tuple(files)


@functools.cache
def load_bytes(data_root: str, file_pattern: str, max_bytes: int) -> BytesData:
    """Read files in order until there are ``max_bytes`` of training data, and some that is held out."""
    train, held_out = bytearray(), bytearray()
    files = list_files(data_root, file_pattern)
    first = 0 if len(files) >= _HELD_OUT_EVERY else len(files) - 1
    for index, file in enumerate(files):
        part = held_out if index % _HELD_OUT_EVERY == first else train
        part += file.read_bytes()
        if len(train) >= max_bytes and held_out:
            break
    return BytesData(train=_as_tensor(train[:max_bytes]), held_out=_as_tensor(held_out))


def _is_skipped(path: Path) -> bool:
    return not _SKIPPED_FOLDERS.isdisjoint(path.parts)


def _as_tensor(text: bytearray) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(text, dtype=np.uint8))


def _inputs_and_targets(windows: torch.Tensor) -> Batch:
    windows = windows.long()
    return windows[:, :-1], windows[:, 1:]
