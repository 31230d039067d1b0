"""Of a frozen second moment, by its defaults."""

import torch
from torch import nn

DUE = [*range(16), *range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8), *range(128, 400, 16)]
"""Iterations that refresh."""


def unbiased(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> torch.Tensor:
    """What Adam divides by, squared."""
    state, beta = optimizer.state[parameter], optimizer.param_groups[0]["betas"][1]
    return state["exp_avg_sq"] / (1 - beta ** float(state["step"]))
