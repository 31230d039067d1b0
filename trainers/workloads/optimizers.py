"""The optimizers that a workload may offer a choice of; which code is best depends on it."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

OPTIMIZERS = ("sgd", "adam")
"""SGD with momentum, and AdamW."""
DRAWN = "drawn"
"""One of them in each run, for policies that are to know both."""


def check_optimizer_name(name: str) -> None:
    """Raises ValueError, listing the known ones, for an unknown name."""
    if name not in (*OPTIMIZERS, DRAWN):
        raise ValueError(f"unknown optimizer {name!r}; known: {', '.join((*OPTIMIZERS, DRAWN))}")


def make_optimizer(
    name: str,
    parameters: Iterator[nn.Parameter],
    *,
    learning_rate: float | Mapping[str, float],
    momentum: float,
    weight_decay: float,
) -> Optimizer:
    """The optimizer of a checked name, with a learning rate, or that of the optimizer among several; for ``drawn``
    one by torch's generator. AdamW has no use for ``momentum``.

    Ranks draw alike in ``build_optimizer``: a run's seed sets their generators, and then they build equal models.
    """
    name = OPTIMIZERS[int(torch.randint(len(OPTIMIZERS), ()))] if name == DRAWN else name
    rate = learning_rate[name] if isinstance(learning_rate, Mapping) else learning_rate
    if name == "adam":
        return AdamW(parameters, lr=rate, weight_decay=weight_decay)
    return SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay)
