"""What one rank measures over an interval of training, and how it travels to the others."""

import dataclasses
import math

import torch

from mqgrad.cuda_ext import SKETCH_SIZE

from ..costs import COSTS, Costs

SCALARS = (*COSTS, "local_norm_sq", "peak_energy", "update_exponent")
"""What ranks exchange beside losses and sketch, in this order."""


@dataclasses.dataclass(kw_only=True, slots=True)
class RankStatistics(Costs):
    """One rank's own measurements over an interval of iterations.

    The gradient's figures are taken at the last iteration of the interval, before compression.
    """

    losses: list[float] = dataclasses.field(default_factory=list)
    """This rank's training loss, one per iteration."""
    local_norm_sq: float = 0.0
    """‖g_r‖² of this rank's gradient."""
    peak_energy: float = 0.0
    """Σ over scale buckets of n_k · max|g_k|², the quantity that the noise of a uniform quantizer scales with."""
    update_exponent: float = 1.0
    """How the optimizer's steps grow with gradients; see :mod:`mqgrad.hook.update_probe`."""
    sketch: torch.Tensor = dataclasses.field(
        default_factory=lambda: torch.zeros(SKETCH_SIZE, dtype=torch.float32)
    )
    """float32 [SKETCH_SIZE], sketch of this rank's gradient; see :func:`mqgrad.cuda_ext.gradient_figures`."""
    parameters: dict[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """By parameter, where a controller wants it: elements, ‖g_r‖² and peak energy, then error and ‖Q(g_r)‖² of each
    :class:`mqgrad.statistics.interval.Trial`. Keys are those of the layout."""

    def to_row(self, interval: int) -> torch.Tensor:
        """Pack into a float64 row of a length that depends on ``interval`` only, so that ranks can all-gather it."""
        losses = (self.losses + [math.nan] * interval)[:interval]
        scalars = [getattr(self, name) for name in SCALARS]
        return torch.cat([torch.tensor(scalars + losses, dtype=torch.float64), self.sketch.cpu().double()])

    def parameter_rows(self) -> torch.Tensor:
        """``parameters`` as float64 [K, 3 + 2B] with B trials, in the order of their keys."""
        return torch.tensor([self.parameters[key] for key in sorted(self.parameters)], dtype=torch.float64)
