"""What a training method is: the way in which W replicas become one training run."""

import dataclasses
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from mqgrad.codecs.quantization_noise import Coding
from mqgrad.compressors import Compressor
from mqgrad.controllers.base import Controller
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.statistics.rank import RankStatistics
from mqgrad.widths import Width

from ..link import LinkEmulation


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankInterval:
    """One rank's part of an interval."""

    statistics: RankStatistics
    bits: Width
    """Width of the last iteration."""
    iteration: int
    """Iterations since the run began."""
    bit_iterations: float | None = None
    """Sum of the width over the iterations of this interval, where it may have changed among them."""
    coding: Coding = dataclasses.field(default_factory=Coding)
    """Of the compressor."""
    period: int = 1
    """Of ``IntervalStatistics``: iterations that count as one here."""
    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the compressor reports of itself."""
    decided_on: IntervalStatistics | None = None
    """What the controller saw last; None without one, and before its first decision."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a run begins with on one rank. The replicas start out equal."""

    model: nn.Module
    optimizer: Optimizer
    group: dist.ProcessGroup
    seed: int
    link: LinkEmulation | None
    controller: Controller | None
    compressor: Compressor | str
    timeout_seconds: float


@runtime_checkable
class TrainingMethod(Protocol):
    """Exchanges gradients or parameters between the ranks. One object belongs to one run.

    A dataclass whose constructor arguments are its settings. All ranks call the same methods in the same order.
    """

    @property
    def has_exchanged(self) -> bool:
        """Whether the last iteration ended with an exchange. The same on all ranks."""
        ...

    @property
    def can_be_paced(self) -> bool:
        """Whether it runs on emulated links, or only on real ones and those that the kernel shapes."""
        ...

    def start(self, setup: Setup) -> nn.Module:
        """Begin the run; return the module to compute the loss with."""
        ...

    def begin_interval(self, iterations: int, bits: Width | None) -> None:
        """Announce some iterations. ``bits`` is their width where the caller decides, else None."""
        ...

    def step(self, loss: torch.Tensor) -> None:
        """Update the parameters, after backward."""
        ...

    def end_interval(self) -> RankInterval:
        """What the iterations since :meth:`begin_interval` cost and showed."""
        ...

    def close(self) -> None:
        """End the run; bounded, whatever became of the other ranks."""
        ...
