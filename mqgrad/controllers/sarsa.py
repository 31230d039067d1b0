"""The mathematics of MQGrad's agent (Cui et al., ICTIR 2018): its network, greedy choice, update and reward.

The controller ``mqgrad-authors`` learns with it during one run, :class:`mqgrad.agents.sarsa.Sarsa` in the
environment.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ..widths import Width

HIDDEN = 30
INITIAL_STD = (0.05, 5e-5)
"""Of the first and second layer's weights before they are truncated at twice as much."""


def q_network(
    num_losses: int, num_widths: int, hidden: int = HIDDEN, generator: torch.Generator | None = None
) -> nn.Sequential:
    """``num_losses`` → ``hidden`` tanh → one value per width, float32.

    Initial weights are those of the authors' code: truncated normal, the second layer's so small that Q is about 0 at
    first; biases are zero.

    Args:
        generator: what they are drawn from; torch's own, which the model's training shares, if None.
    """
    layers = [
        nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float32)  # whatever a script's default is
        for inputs, outputs in ((num_losses, hidden), (hidden, num_widths))
    ]
    for layer, std in zip(layers, INITIAL_STD, strict=True):
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1])


def prefers_next(q_NK: torch.Tensor, index_N: torch.Tensor) -> torch.Tensor:
    """Whether the next width is worth at least as much as the one at ``index_N``, bool [N]; never at the last width.

    That a tie goes to the higher width is the authors'.

    Args:
        q_NK: float32 [N, num_widths], from the network.
        index_N: int64 [N], of the widths in use.
    """
    last = q_NK.shape[1] - 1
    next_N = (index_N + 1).clamp(max=last)
    is_worth_it_N = (q_NK.gather(1, next_N[:, None]) >= q_NK.gather(1, index_N[:, None])).squeeze(1)
    return is_worth_it_N & (index_N < last)


def sarsa_step(network: nn.Module, q: torch.Tensor, target: float, learning_rate: float) -> float:
    """One semi-gradient step: w ← w + α·(target − q)·∇q, with target = r + γ·Q(s', a'), which is not differentiated.

    Args:
        q: Q(s, a) of ``network``, a scalar with its graph.

    Returns:
        The TD error before the step.
    """
    error = target - q.item()
    parameters = tuple(network.parameters())
    gradients = torch.autograd.grad(q, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(gradient, alpha=learning_rate * error)
    return error


def slope_reward(smoothed_losses: Sequence[float], bits: Width) -> float:
    """−300 · slope / (5 + 5·b), slope that of the last smoothed losses.

    5 + 5·b is the authors' model of the time that an interval at b bits takes; no measured second enters.
    """
    return -300.0 * least_squares_slope(smoothed_losses) / (5 + 5 * bits)


def least_squares_slope(values: Sequence[float]) -> float:
    """Slope of the least-squares line through (0, values[0]), (1, values[1]), …; 0 for one value."""
    steps = np.arange(len(values)) - (len(values) - 1) / 2
    return float(steps @ np.asarray(values) / max(steps @ steps, 1.0)) if len(values) > 1 else 0.0
