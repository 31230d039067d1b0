"""Figures of a rank's own gradient, taken before it is compressed."""

import torch

from .compressors.base import BucketWork, Compressor
from .sketch import Sketcher
from .statistics import RankStatistics
from .widths import Width


class GradientFigures:
    """Adds up, over the buckets of one iteration, what controllers want to know of the gradient.

    Args:
        seed: of the sketches, equal on all ranks.
        compressor: gives the elements that share one scale, and is tried.
        by_parameter: whether a controller wants norms and peaks of each parameter: two more passes.
        trial_widths: widths whose error it wants, of each parameter: coded and decoded once for each of them.
    """

    def __init__(
        self,
        seed: int,
        compressor: Compressor,
        *,
        by_parameter: bool = False,
        trial_widths: tuple[Width, ...] = (),
    ) -> None:
        self._sketcher = Sketcher(seed)
        self._compressor = compressor
        self._bucket_size = compressor.bucket_size
        self._by_parameter = by_parameter
        self._trial_widths = trial_widths

    def add(self, work: BucketWork, statistics: RankStatistics) -> None:
        """Add the figures of one bucket [N] to the statistics: three passes over it."""
        buffer, layout = work.buffer, work.layout
        statistics.local_norm_sq += _norm_sq(buffer)
        statistics.peak_energy += self._peak_energy(buffer)
        statistics.sketch = statistics.sketch + self._sketcher.sketch(buffer, layout.keys[0]).cpu()
        if self._by_parameter:
            trials = self._trials(work)
            for key, gradient, tried in zip(layout.keys, work.gradients, trials, strict=True):
                flat = gradient.reshape(-1)
                statistics.parameters[key] = (flat.numel(), _norm_sq(flat), self._peak_energy(flat), *tried)

    def _trials(self, work: BucketWork) -> list[list[float]]:
        """Of each parameter: ‖Q(g) − g‖² and ‖Q(g)‖² at the trial widths, one after another."""
        if work.buffer.numel() == 0:
            return [[0.0, 0.0] * len(self._trial_widths) for _ in work.gradients]
        trials: list[list[float]] = [[] for _ in work.gradients]
        for bits in self._trial_widths:
            coded = self._compressor.tried(work, bits)
            if coded is None:
                return [[] for _ in work.gradients]
            for trial, values, gradient in zip(trials, coded, work.gradients, strict=True):
                trial += [_norm_sq(values - gradient.reshape(-1)), _norm_sq(values)]
        return trials

    def _peak_energy(self, x: torch.Tensor) -> float:
        """Σ n_k·max|g_k|² over scale buckets of n_k elements."""
        if x.numel() == 0:
            return 0.0
        padding = -x.numel() % self._bucket_size
        padded = torch.nn.functional.pad(x.float(), (0, padding))
        squares = padded.view(-1, self._bucket_size).abs().amax(dim=1).square()
        return float(squares.sum() * self._bucket_size - squares[-1] * padding)


def _norm_sq(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float32).square())
