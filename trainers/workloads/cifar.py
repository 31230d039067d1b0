"""``cifar10-cnn``, ``cifar10-resnet18`` and ``cifar100-resnet34``: CIFAR's images, from ``data_root``."""

import abc
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from mqgrad.checks import check_count, check_not_negative, check_positive

from .cifar_files import CIFAR10, CIFAR100, Archive, CIFARData, load_cifar
from .classification import Classification, held_out_figures
from .convnets import MQGradCNN, ResNet
from .data_files import find_folder
from .workload import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class CIFAR(Classification, abc.ABC):
    """Settings and everything but the model. Subclasses give ``name``, ``build_model`` and the constants.

    Training images are cropped at random and mirrored; channels are standardised.

    Raises:
        ValueError: an invalid setting, or a ``data_root`` without the files.
    """

    archive: ClassVar[Archive] = CIFAR10
    crop: ClassVar[int] = 32
    """Height and width of what the model sees."""
    padding: ClassVar[int] = 4
    """Black pixels around a training image before it is cropped."""

    data_root: str = ""
    """Folder that holds the unpacked archive, or that archive's own folder."""
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    evaluation_images: int = 1000
    """How many images of the test set an evaluation looks at; 10,000 for all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(evaluation_images=self.evaluation_images)
        check_positive(learning_rate=self.learning_rate)
        check_not_negative(momentum=self.momentum, weight_decay=self.weight_decay)
        self._folder()  # fails here, before any worker has started

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name in tables and logs."""

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(
            model.parameters(), lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """Images float32 [batch_size, 3, crop, crop], labels int64 [batch_size]."""
        data = self._load()
        images, labels = data.train
        order = self.batch_indices(labels, rank, world_size, seed)
        generator = torch.Generator().manual_seed(seed * world_size + rank)
        return (
            (data.standardise(_augment(images[i], self.crop, self.padding, generator)), labels[i])
            for i in order
        )

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` (nats) and ``accuracy`` on the centres of test images."""
        data = self._load()
        images, labels = (part[: self.evaluation_images] for part in data.test)
        edge = (32 - self.crop) // 2
        centres = images[:, :, edge : edge + self.crop, edge : edge + self.crop]
        return held_out_figures(model, map(data.standardise, centres.split(100)), labels)

    def _folder(self) -> Path:
        files = (*self.archive.train_files, self.archive.test_file)
        return find_folder(self.name, self.data_root, self.archive.folder, files, self.archive.source)

    def _load(self) -> CIFARData:
        return load_cifar(self._folder(), self.archive)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CIFAR10CNN(CIFAR):
    """MQGrad's model and optimizer (Cui et al., ICTIR 2018): plain SGD on 28 × 28 crops, L2 on two layers."""

    crop: ClassVar[int] = 28
    padding: ClassVar[int] = 0

    learning_rate: float = 0.2
    momentum: float = 0.0
    weight_decay: float = 0.00175
    """L2 regularisation of the weights of the two hidden fully connected layers."""
    warmup_iterations: int = 0

    @property
    def name(self) -> str:
        return "cifar10-cnn"

    def build_model(self) -> nn.Module:
        return MQGradCNN()

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        weights = {"hidden1.weight", "hidden2.weight"}
        regularised = [p for name, p in model.named_parameters() if name in weights]
        others = [p for name, p in model.named_parameters() if name not in weights]
        groups: list[dict[str, Any]] = [{"params": regularised}, {"params": others, "weight_decay": 0.0}]
        return SGD(groups, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CIFAR10ResNet18(CIFAR):
    """11.2 million parameters."""

    @property
    def name(self) -> str:
        return "cifar10-resnet18"

    def build_model(self) -> nn.Module:
        return ResNet((2, 2, 2, 2), classes=10)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CIFAR100ResNet34(CIFAR):
    """21.3 million parameters."""

    archive: ClassVar[Archive] = CIFAR100

    @property
    def name(self) -> str:
        return "cifar100-resnet34"

    def build_model(self) -> nn.Module:
        return ResNet((3, 4, 6, 3), classes=100)


def _augment(images: torch.Tensor, size: int, padding: int, generator: torch.Generator) -> torch.Tensor:
    """Cut a square of ``size`` out of each padded image, uint8 [N, 3, H, W], and mirror half of them."""
    count = len(images)
    padded = F.pad(images, (padding, padding, padding, padding))
    down, right = torch.randint(0, padded.shape[-1] - size + 1, (2, count, 1), generator=generator)
    mirrored = torch.randint(0, 2, (count, 1), generator=generator) == 1
    rows = torch.arange(size) + down  # [N, size], as are the columns
    columns = torch.arange(size) + right
    columns = torch.where(mirrored, columns.flip(1), columns)
    image, channel = torch.arange(count).view(-1, 1, 1, 1), torch.arange(3).view(1, -1, 1, 1)
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
