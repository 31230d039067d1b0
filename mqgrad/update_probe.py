"""Whether an optimizer's steps grow with its gradients, found from outside.

A comm hook does not see the optimizer, and how much noise costs depends on it. But it sees the parameters, and how
far each of them moves: the root mean square u_p of a parameter's step and r_p of its gradient. Where steps are
linear in the gradient, u_p is proportional to r_p, whatever the learning rate; where the optimizer divides by the
gradient's size, all u_p are about equal. (Weight decay, which knows no gradient, moves parameters along themselves:
that direction is left out.) So the slope of ln u_p over ln r_p, over the parameters of a model, tells SGD (1) from
Adam (0). Momentum holds gradients of other iterations, too, which leaves 0.6-1.0 of the one and 0.0-0.15 of the other
(`digits-cnn`, `digits-mlp`, `bytes-gpt`, `bytes-lstm`; at 1 bit and in fp32, means over a run): what is beyond
counts as 0 or 1. Derived for this project.
"""

import math
from collections.abc import Sequence

import torch

from .compressors.base import BucketWork

_SAMPLE = 256  # elements of each parameter that are watched, at least, if it has as many
_UNKNOWN = 0.5
_ADAM, _SGD = 0.15, 0.6  # slopes
_RIDGE = 0.05  # variance of ln r_p at which a slope counts half, and half what stands for _UNKNOWN


class UpdateProbe:
    """Watches a sample of every parameter from its gradient to the end of the step that follows from it."""

    def __init__(self) -> None:
        self._before: dict[int, torch.Tensor] = {}
        self._gradient_sq: dict[int, torch.Tensor] = {}

    def begin(self, work: BucketWork, parameters: Sequence[torch.Tensor]) -> None:
        """Before the step: remember a bucket's parameters and the size of their gradients.

        Args:
            work: the bucket, not yet averaged.
            parameters: of the model, by key.
        """
        for key, gradient in zip(work.layout.keys, work.gradients, strict=True):
            self._before[key] = _sample(parameters[key])
            self._gradient_sq[key] = _mean_square(_sample(gradient))

    def end(self, parameters: Sequence[torch.Tensor]) -> float:
        """After the step: the update exponent, from 0 to 1, and forget.

        Returns:
            the slope by least squares, drawn towards 0.5 where gradients hardly differ in size; 0.5 where no
            parameter has moved, or a model has one only.
        """
        keys = sorted(self._before)
        if not keys:
            return _UNKNOWN
        steps = torch.stack([_step_sq(self._before[key], _sample(parameters[key])) for key in keys])
        gradients = torch.stack([self._gradient_sq[key] for key in keys])
        self._before, self._gradient_sq = {}, {}
        return _exponent(_slope(gradients.tolist(), steps.tolist()))


def _sample(x: torch.Tensor) -> torch.Tensor:
    """A copy of evenly spaced elements of a tensor of any shape, float32 [fewer than 2 · _SAMPLE]."""
    flat = x.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)].to(torch.float32, copy=True)


def _mean_square(sample: torch.Tensor) -> torch.Tensor:
    return sample.square().sum() / max(sample.numel(), 1)


def _step_sq(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Mean square of a step but for what is along the parameter itself, where weight decay is."""
    step = after - before
    along = torch.dot(step, before) / torch.dot(before, before).clamp(min=1e-30)
    return _mean_square(step - along * before)


def _exponent(slope: float) -> float:
    return min(max((slope - _ADAM) / (_SGD - _ADAM), 0.0), 1.0)


def _slope(gradients_sq: list[float], steps_sq: list[float]) -> float:
    """Of the logarithms of their roots; what is zero or not finite tells nothing."""
    unknown = _ADAM + _UNKNOWN * (_SGD - _ADAM)
    pairs = [pair for pair in zip(gradients_sq, steps_sq, strict=True) if all(0 < v < math.inf for v in pair)]
    if not pairs:
        return unknown
    points = [(math.log(x) / 2, math.log(y) / 2) for x, y in pairs]
    mean_x, mean_y = (math.fsum(values) / len(points) for values in zip(*points, strict=True))
    variance = math.fsum((x - mean_x) ** 2 for x, _ in points) / len(points)
    covariance = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / len(points)
    return (covariance + _RIDGE * unknown) / (variance + _RIDGE)
