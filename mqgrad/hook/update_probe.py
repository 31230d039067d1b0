"""Whether an optimizer's steps grow with its gradients, found from outside.

A comm hook does not see the optimizer, and how much noise costs depends on it. But it sees the parameters, and how
far each of them moves: the root mean square u_p of a parameter's step and r_p of its gradient. Where steps are
linear in the gradient, u_p is proportional to r_p, whatever the learning rate; where the optimizer divides by the
gradient's size, all u_p are about equal. (Weight decay, which knows no gradient, moves parameters along themselves:
that direction is left out.) So the slope of ln u_p over ln r_p, over the parameters of a model, tells SGD (1) from
Adam (0). Momentum holds gradients of other iterations, too, which leaves 0.6-1.0 of the one and 0.0-0.15 of the other
(`digits-cnn`, `digits-mlp`, `bytes-gpt`, `bytes-lstm`; at 1 bit and in fp32, means over a run): what is beyond
counts as 0 or 1. Derived for this project.

That is so for one learning rate. Where parameters have their own, u_p is divided by it first, if the optimizer is
known (:mod:`mqgrad.hook.param_groups`): without that, smaller ones where gradients are smaller look like SGD.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..compressors.base import BucketWork
from ..tensors import evenly_spaced, num_evenly_spaced
from .param_groups import HasParamGroups, learning_rates

_UNKNOWN = 0.5
_ADAM, _SGD = 0.15, 0.6  # slopes
_STILL = 3  # steps: fewer may have been skipped, as by a gradient scaler that looks for its scale
_RIDGE = 0.05  # variance of ln r_p at which a slope counts half, and half what stands for _UNKNOWN


class _Watched(NamedTuple):
    """A sample of every parameter of a bucket, one behind the other: P elements of K parameters."""

    keys: tuple[int, ...]
    lengths: torch.Tensor
    """int64 [K]."""
    before: torch.Tensor
    """float32 [P]: before the step."""
    gradient_sq: torch.Tensor
    """float32 [K]: mean square of the gradient."""
    rates: torch.Tensor
    """float32 [K]: learning rates of the step; NaN where that is not known."""


class UpdateProbe:
    """Watches a sample of every parameter from its gradient to the end of the step that follows from it.

    Args:
        optimizer: tells learning rates; None takes all as equal. What it does not step, or not at all for the moment
            (0), is left out.
    """

    def __init__(self, optimizer: HasParamGroups | None = None) -> None:
        self._optimizer = optimizer
        self._watched: list[_Watched] = []
        self._after: list[torch.Tensor] = []
        """The same samples after the step."""
        self._still: int | None = 0
        """Steps that moved nothing; None after one that did."""

    @property
    def stands_still(self) -> bool:
        """Whether no step since the first has moved anything, and there have been several."""
        return self._still is not None and self._still >= _STILL

    def begin(self, work: BucketWork, parameters: Sequence[torch.Tensor]) -> None:
        """Before the step: remember a bucket's parameters and the size of their gradients.

        Args:
            work: the bucket, not yet averaged.
            parameters: of the model, by key.
        """
        keys = work.layout.keys
        own = [parameters[key] for key in keys]
        before, lengths = _samples(own), _lengths(own)
        # Now: a scheduler may change them as soon as the step is done.
        rates = torch.tensor(learning_rates(self._optimizer, own), device=before.device, dtype=torch.float32)
        # One that no step has followed is of the past.
        self._watched = [watched for watched in self._watched if not set(keys) & set(watched.keys)]
        self._watched.append(
            _Watched(keys, lengths, before, _mean_squares(_samples(work.gradients), lengths), rates)
        )
        self._after = []

    def note_step(self, parameters: Sequence[torch.Tensor]) -> None:
        """The optimizer has stepped: look at where parameters are now, before the script does anything else to them.

        For the training thread. Does nothing where nothing is watched, or that has been done.
        """
        if len(self._after) < len(self._watched):
            self._after = [_samples([parameters[key] for key in watched.keys]) for watched in self._watched]
            if self._still is not None:
                pairs = zip(self._watched, self._after, strict=True)
                has_moved = any(not torch.equal(watched.before, after) for watched, after in pairs)
                self._still = None if has_moved else self._still + 1

    def end(self) -> float:
        """The update exponent, from 0 to 1, of the step that was noted, and forget.

        Returns:
            the slope by least squares, drawn towards 0.5 where gradients hardly differ in size; 0.5 where no
            parameter has moved, a model has one only, or no step was noted.
        """
        pairs = list(zip(self._watched, self._after, strict=False))
        self._watched, self._after = [], []
        gradients = [value for watched, _ in pairs for value in watched.gradient_sq.tolist()]
        steps = [value for watched, after in pairs for value in _steps_sq(watched, after).tolist()]
        return _exponent(_slope(gradients, steps))


def _samples(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Copies of evenly spaced elements of K tensors of any shape, float32 [P]."""
    return torch.cat([evenly_spaced(tensor) for tensor in tensors]).float()


def _lengths(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """How many of each are in that, int64 [K]."""
    return torch.tensor([num_evenly_spaced(tensor) for tensor in tensors], device=tensors[0].device)


def _sums(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Sums of K parts of a vector."""
    return torch.segment_reduce(x, "sum", lengths=lengths)


def _mean_squares(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return _sums(x.square(), lengths) / lengths.clamp(min=1)


def _steps_sq(watched: _Watched, after: torch.Tensor) -> torch.Tensor:
    """Mean squares [K] of steps by learning rate, but for what is along the parameters themselves, where weight decay
    is."""
    before, lengths = watched.before, watched.lengths
    step = after - before
    along = _sums(step * before, lengths) / _sums(before.square(), lengths).clamp(min=1e-30)
    return _mean_squares(step - along.repeat_interleave(lengths) * before, lengths) / watched.rates.square()


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
