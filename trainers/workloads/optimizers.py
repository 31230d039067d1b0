"""The optimizers that a workload may offer a choice of; which code is best depends on it."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from mqgrad.checks import check_not_negative, check_positive

OPTIMIZERS = ("sgd", "adam")
"""SGD with momentum, and AdamW."""
DRAWN = "drawn"
"""One of them in each run, for policies that are to know both."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenOptimizer:
    """The settings of one. Subclasses give ``learning_rates``.

    Raises:
        ValueError: an invalid setting.
    """

    learning_rates: ClassVar[Mapping[str, float]]
    """By optimizer."""

    optimizer: str = "sgd"
    """One of ``OPTIMIZERS``, or ``drawn``: one of them in each run."""
    learning_rate: float | None = None
    """None takes that of ``learning_rates``."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        known = (*OPTIMIZERS, DRAWN)
        if self.optimizer not in known:
            raise ValueError(f"unknown optimizer {self.optimizer!r}; known: {', '.join(known)}")
        if self.learning_rate is not None:
            check_positive(learning_rate=self.learning_rate)
        check_not_negative(momentum=self.momentum, weight_decay=self.weight_decay)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """For ``drawn`` one by torch's generator: a run's seed sets those of all ranks, which then draw alike and
        build equal models."""
        is_drawn = self.optimizer == DRAWN
        name = OPTIMIZERS[int(torch.randint(len(OPTIMIZERS), ()))] if is_drawn else self.optimizer
        rate = self.learning_rate or self.learning_rates[name]
        if name == "adam":
            return AdamW(model.parameters(), lr=rate, weight_decay=self.weight_decay)
        return SGD(model.parameters(), lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)
