"""L-GreCo: per layer, the fewest bits at the error of a uniform width."""

import dataclasses

import numpy as np
import numpy.typing as npt

from ..checks import check_count, check_decay
from ..statistics.interval import ParameterStatistics
from ..widths import Width
from .layer_rule import LayerRule, ewma_each


@dataclasses.dataclass(kw_only=True, slots=True)
class LGreCo(LayerRule):
    """Minimise Σ size(l, b_l) subject to Σ err(l, b_l) ≤ Σ err(l, ``reference``) (Markov et al., MLSys 2024).

    A knapsack over layers, solved by dynamic programming over the allowed error in ``steps`` parts.

    err(l, b) is the L2 norm of the layer's error, not its square, as in the authors' code: of squares the layer with
    the largest would be nearly all of the sum, and nothing left to trade. It is measured, as in the paper, by
    compressing the layer's gradient at every candidate: here of the last iteration of each interval, as the root of
    the square's average over ranks and decisions, where the paper has the accumulated gradient of one rank. A layer
    is one parameter, and its size d·b bits: scales are the same at each width.

    Raises:
        ValueError: from ``decide``, for a compressor that has no trials.
    """

    reference: Width = 4
    """The uniform width whose error is not exceeded."""
    steps: int = 10_000
    """Parts of the allowed error."""
    keep: float = 0.9
    """Share of the old value in the average of a squared error, per decision."""
    errors: list[float] = dataclasses.field(init=False, default_factory=list)
    """State: EWMA of the squared error of each parameter at each width, parameter after parameter."""

    def prepare(self) -> None:
        self.reference = self.check_choice("reference", self.reference)
        check_count(steps=self.steps)
        check_decay(keep=self.keep)

    @property
    def trial_widths(self) -> tuple[Width, ...]:
        """All that it chooses from."""
        return self.widths

    def choose(self, parameters: tuple[ParameterStatistics, ...]) -> list[Width]:
        """The knapsack's solution, for errors averaged over decisions."""
        if any(len(p.trials) != len(self.widths) for p in parameters):
            raise ValueError("l-greco needs the errors of trial compressions, and this compressor has none")
        measured = [trial.error_sq for p in parameters for trial in p.trials]
        self.errors = ewma_each(self.errors, measured, self.keep)
        numels_L = np.array([p.numel for p in parameters])
        errors_LB = np.sqrt(self.errors).reshape(len(parameters), len(self.widths))
        errors_LB[numels_L == 0] = 0.0  # of what DDP no longer brings
        sizes_LB = np.outer(numels_L, self.widths)
        reference = self.widths.index(self.reference)
        chosen_L = knapsack(sizes_LB, errors_LB, float(errors_LB[:, reference].sum()), self.steps)
        uniform_L = np.full(len(parameters), reference)
        if chosen_L is None or _total(sizes_LB, chosen_L) >= _total(sizes_LB, uniform_L):
            chosen_L = uniform_L
        return [self.widths[i] for i in chosen_L]


def knapsack(
    sizes_LB: npt.NDArray[np.float64], errors_LB: npt.NDArray[np.float64], allowed: float, steps: int
) -> npt.NDArray[np.int64] | None:
    """Choose one of B options for each of L layers: the least total size whose total error is at most ``allowed``.

    Errors are rounded up to parts of ``allowed / steps``, so that the answer never exceeds it; it may be larger than
    the best one by what a part per layer is worth, and None where only rounding makes a solution impossible.

    1. best[e] is the least size of the layers so far with an error of at most e parts.
    2. Layer by layer, take for each e the option with the least size + best[e − its error].
    3. Walk back from best[steps].

    Returns:
        int64 [L], the index of each layer's option.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        parts_LB = np.nan_to_num(np.ceil(errors_LB * steps / allowed), nan=0.0, posinf=steps + 1)
    costs_LB = np.minimum(parts_LB, steps + 1).astype(np.int64)
    # 1.
    best_E = np.zeros(steps + 1)
    choices_LE = np.zeros((len(sizes_LB), steps + 1), dtype=np.int8)
    # 2.
    for size_B, cost_B, choice_E in zip(sizes_LB, costs_LB, choices_LE, strict=True):
        totals_BE = np.full((len(size_B), steps + 1), np.inf)
        for total_E, size, cost in zip(totals_BE, size_B, cost_B, strict=True):
            total_E[cost:] = best_E[: steps + 1 - cost] + size
        choice_E[:] = totals_BE.argmin(axis=0)
        best_E = totals_BE.min(axis=0)
    if not np.isfinite(best_E[steps]):
        return None
    # 3.
    chosen_L, left = np.zeros(len(sizes_LB), dtype=np.int64), steps
    for layer in reversed(range(len(sizes_LB))):
        chosen_L[layer] = choices_LE[layer, left]
        left -= costs_LB[layer, chosen_L[layer]]
    return chosen_L


def _total(values_LB: npt.NDArray[np.float64], chosen_L: npt.NDArray[np.int64]) -> float:
    return float(np.take_along_axis(values_LB, chosen_L[:, None], axis=1).sum())
