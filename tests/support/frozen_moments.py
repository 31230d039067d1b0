"""Of a frozen second moment, by its defaults."""

from typing import Any

import models
import torch
from torch import nn

import mqgrad

DUE = [*range(16), *range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8), *range(128, 400, 16)]
"""Iterations that refresh."""


def unbiased(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> torch.Tensor:
    """What Adam divides by, squared."""
    state, beta = optimizer.state[parameter], optimizer.param_groups[0]["betas"][1]
    return state["exp_avg_sq"] / (1 - beta ** float(state["step"]))


def new_adam_run(controller: mqgrad.Controller, **settings: Any) -> models.Run:
    """As :func:`models.new_run`."""
    model = models.small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = mqgrad.CompressionState(
        controller,
        optimizer=optimizer,
        second_moment=mqgrad.FrozenSecondMoment(**{"opening": 16, **settings}),
    )
    return models.compressed_ddp(model, state, bucket_cap_mb=0.02), optimizer, state
