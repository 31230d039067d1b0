"""ECQ-SGD: error feedback with coefficients that keep an unbiased code stable, and an eye on whether they do."""

import dataclasses
import logging
import math
import warnings

import torch

from ..checks import check_not_negative
from ..widths import Width
from .feedback import FeedbackGain
from .quantized import QSGD

_log = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True)
class ECQSGD(QSGD):
    """ECQ-SGD (Wu et al., ICML 2018): QSGD of v = g + α·h, with h ← β·h + g − Q(v).

    Stable iff λ = α²γ + (β − α)² < 1, γ being ‖Q(v) − v‖²/‖v‖². γ is measured at an interval's end, and every ten
    iterations of a longer one, on the vectors of all ranks; λ ≥ 1 is warned of once a run. The same vectors give the
    size under an ideal entropy code. What is measured is not saved: after loading a state it is measured anew.

    Raises:
        ValueError: for a coefficient that is negative or not finite.
    """

    error_feedback: bool = True
    """What distinguishes it from QSGD."""
    alpha: float | None = None
    """How much of the residual is sent along; None follows the width: β/(1 + γ), the most stable."""
    beta: float = 1.0
    """How much of the residual is remembered; above 1 nothing is stable for long."""
    stability: dict[str, dict[Width, float]] = dataclasses.field(
        init=False, repr=False, default_factory=lambda: {"push": {}, "pull": {}}
    )
    """Measured: λ by width, of each way's feedback."""
    growth: dict[str, float] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """Measured: λ of each way at the width where it was measured last."""
    measured_bytes: float = dataclasses.field(init=False, repr=False, default=0.0)
    """Measured: payload bytes of the vectors that were looked at."""
    entropy_bytes: float = dataclasses.field(init=False, repr=False, default=0.0)
    """Measured: what an ideal entropy code would have made of the same vectors, scales included."""
    warned: bool = dataclasses.field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {"alpha": self.alpha, "beta": self.beta}
        check_not_negative(**{name: value for name, value in given.items() if value is not None})

    def figures(self) -> dict[str, float]:
        """λ of both ways as last measured; the share of the payload that an ideal entropy code would need."""
        if not (self.growth and self.measured_bytes):  # measured in one iteration, learned in the next
            return super().figures()
        growth = {f"feedback_growth_{way}": growth for way, growth in self.growth.items()}
        return {
            **super().figures(),
            **growth,
            "entropy_coded_share": self.entropy_bytes / self.measured_bytes,
        }

    def coefficients(
        self, gain: FeedbackGain, bits: Width, *, of_deltas: bool = False
    ) -> tuple[float, float]:
        alpha = self.alpha if self.alpha is not None else self.beta * gain.alpha(bits)
        return alpha, self.beta

    def _observe(
        self, gain: FeedbackGain, bits: Width, payload: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        decoded = super()._observe(gain, bits, payload, value)
        self.measured_bytes += payload.numel()
        self.entropy_bytes += _entropy_bytes(decoded.view(-1, self.bucket_size), bits)
        return decoded

    def _learned(self, gain: FeedbackGain, bits: Width) -> None:
        way = "push" if gain is self.push_gain else "pull"
        gamma, alpha = gain.gamma(bits), self.coefficients(gain, bits)[0]
        growth = self.growth[way] = self.stability[way][bits] = alpha**2 * gamma + (self.beta - alpha) ** 2
        ratio = self.measured_bytes / self.entropy_bytes if self.entropy_bytes else math.nan
        _log.info(
            "ecq-sgd, %s at %s bits: λ = %.3f; bytes are %.2f × their entropy", way, bits, growth, ratio
        )
        if growth >= 1 and not self.warned:
            self.warned = True
            warnings.warn(
                f"ecq-sgd is not stable at {bits} bits ({way}): λ = α²γ + (β − α)² = {growth:.3g} ≥ 1 with "
                f"α = {alpha:.3g}, β = {self.beta:g}, measured γ = {gamma:.3g}; leave alpha out, or try "
                f"{self.beta / (1 + gamma):.3g}",
                RuntimeWarning,
                stacklevel=2,
            )


def _entropy_bytes(decoded_BL: torch.Tensor, bits: Width) -> float:
    """(32·B + Σ_k d_k·log2(d/d_k)) / 8, d_k of d elements being at level k. The largest magnitude is at the last."""
    levels = max(2 ** (int(bits) - 1) - 1, 1)
    scale_B1 = decoded_BL.abs().amax(1, keepdim=True)
    codes_BL = torch.where(scale_B1 > 0, decoded_BL / scale_B1 * levels, 0.0).round()
    counts = torch.unique(codes_BL.nan_to_num(), return_counts=True)[1].double()
    return float((counts * (counts.sum() / counts).log2()).sum() + 32 * len(decoded_BL)) / 8
