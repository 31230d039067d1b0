"""The optimizers that a workload may offer a choice of; which code is best depends on it."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

OPTIMIZERS = ("sgd", "adam")
"""SGD with momentum, and AdamW."""
DRAWN = "drawn"
"""One of them in each run, for policies that are to know both."""


def check_optimizer(name: str) -> None:
    """Raises ValueError, listing the known ones, for an unknown name."""
    if name not in (*OPTIMIZERS, DRAWN):
        raise ValueError(f"unknown optimizer {name!r}; known: {', '.join((*OPTIMIZERS, DRAWN))}")


def draw_optimizer(name: str) -> str:
    """A checked name as it is; for ``drawn`` another one, by torch's generator.

    Ranks draw alike in ``build_optimizer``: a run's seed sets their generators, and then they build equal models.
    """
    return OPTIMIZERS[int(torch.randint(len(OPTIMIZERS), ()))] if name == DRAWN else name


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
