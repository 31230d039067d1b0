"""``digits-mlp`` and ``digits-cnn``: scikit-learn's bundled handwritten digits, 8 × 8 pixels, 10 classes."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from mqgrad.checks import check_count, check_not_negative

from .classification import Classification, held_out_figures
from .optimizers import ChosenOptimizer
from .workload import Batch

_NUM_HELD_OUT = 360  # of 1797 images
_SPLIT_SEED = 0  # the split is part of the task, not of the run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits(Classification, ChosenOptimizer):
    """Settings and everything but the model. Subclasses give ``name`` and ``build_model``.

    Training images are shifted by up to one pixel and overlaid with noise, or 1,437 images would be learned by
    heart within a few hundred iterations and the loss would say nothing more.
    """

    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.05, "adam": 2e-3}

    warmup_iterations: int = 20
    pixel_noise: float = 0.1
    """Standard deviation of the noise on training images, whose pixels are 0 to 1."""
    width: int = 32
    """Size of the layers; see the model."""

    def __post_init__(self) -> None:
        Classification.__post_init__(self)
        ChosenOptimizer.__post_init__(self)
        check_count(width=self.width)
        check_not_negative(pixel_noise=self.pixel_noise)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """Images float32 [batch_size, 1, 8, 8], labels int64 [batch_size]."""
        images, labels = load_digits().train
        order = self.batch_indices(labels, rank, world_size, seed)
        generator = torch.Generator().manual_seed(seed * world_size + rank)
        return ((_augment(images[i], self.pixel_noise, generator), labels[i]) for i in order)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` (nats) and ``accuracy`` on the held-out images."""
        images, labels = load_digits().held_out
        return held_out_figures(model, [images], labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsMLP(Digits):
    """64 → width → width → width → 10 with ReLU; 151,000 parameters by default."""

    width: int = 256
    """Size of the three hidden layers."""

    @property
    def name(self) -> str:
        return "digits-mlp"

    def build_model(self) -> nn.Module:
        return _initialize(
            nn.Sequential(
                nn.Flatten(),
                nn.Linear(64, self.width),
                nn.ReLU(),
                nn.Linear(self.width, self.width),
                nn.ReLU(),
                nn.Linear(self.width, self.width),
                nn.ReLU(),
                nn.Linear(self.width, 10),
            )
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsCNN(Digits):
    """Two 3 × 3 convolutions (width and 2·width channels), pooling, a hidden layer of 4·width, 10 outputs.

    151,000 parameters by default.
    """

    batch_size: int = 16

    @property
    def name(self) -> str:
        return "digits-cnn"

    def build_model(self) -> nn.Module:
        return _initialize(
            nn.Sequential(
                nn.Conv2d(1, self.width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(self.width, 2 * self.width, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(2 * self.width * 16, 4 * self.width),
                nn.ReLU(),
                nn.Linear(4 * self.width, 10),
            )
        )


@dataclasses.dataclass(frozen=True)
class DigitsData:
    """Images float32 [N, 1, 8, 8] from 0 to 1, labels int64 [N]."""

    train: Batch
    held_out: Batch


@functools.cache
def load_digits() -> DigitsData:
    """The data set, split the same way in every run.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the digits workloads need scikit-learn: pip install 'mqgrad[train]'"
        ) from error
    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held_out, train = order[:_NUM_HELD_OUT], order[_NUM_HELD_OUT:]
    return DigitsData(train=(images[train], labels[train]), held_out=(images[held_out], labels[held_out]))


def _initialize(model: nn.Sequential) -> nn.Sequential:
    """He initialisation: with torch's default these networks stand still for their first 50 iterations."""
    for layer in model:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model


def _augment(images: torch.Tensor, pixel_noise: float, generator: torch.Generator) -> torch.Tensor:
    """Shift each image by up to one pixel each way and add noise."""
    down, right = torch.randint(0, 3, (2, len(images), 1), generator=generator)
    rows = (torch.arange(8) + down).unsqueeze(2)  # [N, 8, 1]
    columns = (torch.arange(8) + right).unsqueeze(1)  # [N, 1, 8]
    padded = F.pad(images, (1, 1, 1, 1))
    shifted = padded[torch.arange(len(images)).view(-1, 1, 1), :, rows, columns].permute(0, 3, 1, 2)
    return shifted + pixel_noise * torch.randn(images.shape, generator=generator)
