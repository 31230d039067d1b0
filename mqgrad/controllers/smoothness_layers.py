"""Smoothness-aware widths per layer: more bits where the loss bends more."""

import dataclasses

import numpy as np
import numpy.typing as npt

from ..checks import check_decay, check_range
from ..statistics.interval import ParameterStatistics
from ..widths import Width
from .layer_rule import LayerRule, ewma_each
from .rule import nearest


@dataclasses.dataclass(kw_only=True, slots=True)
class SmoothnessLayers(LayerRule):
    """b_l = B + log2‖g_l‖_∞ + ½·log2 L_l − (their mean over elements), a diagonal form of Wang et al. 2021.

    Derived for this project: with the smoothness L_l of layer l, quantization adds Σ L_l·d_l/(6s_l²)·‖g_l‖²_∞ to the
    bound, and that is least, at a given mean width, where every element adds the same.

    The matrices L of a network are not known. Its diagonal is replaced by the second moment of the gradient, as in
    Adam, whose own moments a controller does not see: L_l is a running mean of ‖g_l‖²/d_l. ‖g_l‖_∞ is the root mean
    square over the layer's elements of the largest magnitude in their scale bucket. A layer is one parameter.

    Where a width would be outside ``widths``, the others share what it leaves, so that the mean before rounding to a
    width is B.
    """

    budget: float = 4.0
    """B, the mean bits per element."""
    keep: float = 0.9
    """Share of the old value in L, per decision."""
    curvatures: list[float] = dataclasses.field(init=False, default_factory=list)
    """State: L of each parameter."""

    def prepare(self) -> None:
        check_range(self.widths[0], self.widths[-1], budget=self.budget)
        check_decay(keep=self.keep)

    def choose(self, parameters: tuple[ParameterStatistics, ...]) -> list[Width]:
        """The widths nearest to the formula's."""
        self.curvatures = ewma_each(
            self.curvatures, [p.norm_sq / max(p.numel, 1) for p in parameters], self.keep
        )
        numels = np.array([p.numel for p in parameters], dtype=np.float64)
        energies = np.array([p.peak_energy for p in parameters])
        with np.errstate(divide="ignore"):  # a gradient of zero has −∞ and gets the fewest bits
            needs = 0.5 * np.log2(energies / np.maximum(numels, 1)) + 0.5 * np.log2(self.curvatures)
        shared = share(self.budget, needs, numels, self.widths[0], self.widths[-1])
        return [nearest(bits, self.widths) for bits in shared]


def share(
    budget: float,
    needs_L: npt.NDArray[np.float64],
    numels_L: npt.NDArray[np.float64],
    low: float,
    high: float,
) -> list[float]:
    """needs + c held within [low, high], c such that the mean over elements is ``budget``, found by bisection."""
    finite = needs_L[np.isfinite(needs_L)]
    least, most = low - finite.max(), high - finite.min()
    for _ in range(60):
        middle = (least + most) / 2
        mean = np.average(np.clip(needs_L + middle, low, high), weights=numels_L)
        least, most = (middle, most) if mean < budget else (least, middle)
    return [float(bits) for bits in np.clip(needs_L + most, low, high)]
