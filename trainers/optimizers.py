"""The optimizers that a workload may offer a choice of; which code is best depends on it."""

from collections.abc import Iterator

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

OPTIMIZERS = ("sgd", "adam")
"""SGD with momentum, and AdamW."""


def check_optimizer(name: str) -> None:
    """Raises ValueError, listing the known ones, for an unknown name."""
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}; known: {', '.join(OPTIMIZERS)}")


def make_optimizer(
    name: str,
    parameters: Iterator[nn.Parameter],
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> Optimizer:
    """The optimizer of a checked name; AdamW has no use for ``momentum``."""
    if name == "adam":
        return AdamW(parameters, lr=learning_rate, weight_decay=weight_decay)
    return SGD(parameters, lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
