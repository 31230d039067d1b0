"""Error feedback: what quantization left out of one iteration is added to the next."""

import math
from typing import NamedTuple

import torch

from ..codecs.quantization_noise import uniform_noise
from ..layout import Layout
from ..saved_state import SavesFields
from ..statistics.moving_average import ewma
from ..widths import Width

_GAUSSIAN_PEAK_ENERGY = 9.6
"""Over ‖v‖², with a max-norm scale: 512 Gaussians peak at about 3.1 σ, 3.1² = 9.6."""


class Residual(NamedTuple):
    """What is left to send of a part of a bucket's vector, to be updated in place."""

    values: torch.Tensor
    """float32 [N]."""
    start: int
    """Where the part begins in the vector."""
    layout: Layout
    """Of the vector."""

    @property
    def extent(self) -> slice:
        """Elements of the vector that it is of."""
        return slice(self.start, self.start + len(self.values))

    def part(self, part: slice) -> torch.Tensor:
        """Elements ``part`` of the vector, which lie in this part of it."""
        return self.values[part.start - self.start : part.stop - self.start]

    def continue_padding(self, part: slice) -> None:
        """Have the padding in elements ``part`` of the vector owe what the elements do that a code repeats there: or
        that would be the mean of gradients without feedback, mostly."""
        padding, sources = self.layout.padding_in(part)
        values = self.part(part)
        values[padding] = values[sources]

    def clear_padding(self) -> None:
        """Padding owes nothing: a checkpoint and another bucket layout do not carry it along."""
        padding, _ = self.layout.padding_in(self.extent)
        self.values.index_fill_(0, padding, 0.0)


class FeedbackGain(SavesFields):
    """The α of v = g + α·h that keeps the feedback of an unbiased code stable at each width.

    Feedback is stable iff α²γ + (1 − α)² < 1, with γ = ‖Q(v) − v‖²/‖v‖², and best at α = 1/(1 + γ)
    (ECQ-SGD, Wu et al. 2018, with β = 1). γ depends on the width and on the data, so it is measured per width.
    A contractive code (γ < 1) needs none of this: its α is 1.

    DDP regroups its buckets after a restart, which also moves shards to other owners. So that this changes no α, γ is
    that of all buckets and ranks of an iteration, and is taken over between iterations.
    """

    DECAY = 0.9  # of the running mean of γ
    state_fields = ("_gamma", "_pending")
    state_owner = "the gain of feedback"

    def __init__(self) -> None:
        self._gamma: dict[Width, float] = {}
        self._pending: dict[Width, tuple[float, float]] = {}

    def alpha(self, bits: Width) -> float:
        """Gain for a width, from the γ of a Gaussian until it has been measured there."""
        return 1.0 / (1.0 + self.gamma(bits))

    def gamma(self, bits: Width) -> float:
        """‖Q(v) − v‖²/‖v‖² at a width: measured there, or that of a Gaussian."""
        return self._gamma.get(bits, uniform_noise(_GAUSSIAN_PEAK_ENERGY, bits))

    def observe(self, bits: Width, error_sq: float, norm_sq: float) -> None:
        """Add one coded vector of this iteration: ‖Q(v) − v‖² and ‖v‖²."""
        errors, norms = self._pending.get(bits, (0.0, 0.0))
        self._pending[bits] = (errors + error_sq, norms + norm_sq)

    def pending(self, bits: Width) -> tuple[float, float]:
        """Sums of what was observed at a width and is not learned yet."""
        return self._pending.get(bits, (0.0, 0.0))

    def learn(self, bits: Width, error_sq: float, norm_sq: float) -> bool:
        """Learn from the sums over all ranks, in place of what is pending. Zero and non-finite ones teach nothing."""
        self._pending.pop(bits, None)
        gamma = error_sq / norm_sq if norm_sq > 0 else math.nan
        if not math.isfinite(gamma):
            return False
        gamma = float(f"{gamma:.4g}")  # the sums are in the order of the buckets, and round accordingly
        self._gamma[bits] = ewma(self._gamma.get(bits), gamma, self.DECAY)
        return True
