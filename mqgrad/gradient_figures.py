"""Figures of a rank's own gradient, taken before it is compressed."""

import torch

from .compressors.base import BucketWork
from .sketch import Sketcher
from .statistics import RankStatistics


class GradientFigures:
    """Adds up, over the buckets of one iteration, what controllers want to know of the gradient.

    Args:
        seed: of the sketches, equal on all ranks.
        bucket_size: elements that share one scale.
        by_parameter: whether a controller wants norms and peaks of each parameter: two more passes.
    """

    def __init__(self, seed: int, bucket_size: int, *, by_parameter: bool = False) -> None:
        self._sketcher = Sketcher(seed)
        self._bucket_size = bucket_size
        self._by_parameter = by_parameter

    def add(self, work: BucketWork, statistics: RankStatistics) -> None:
        """Add the figures of one bucket [N] to the statistics: three passes over it."""
        buffer, layout = work.buffer, work.layout
        statistics.local_norm_sq += _norm_sq(buffer)
        statistics.peak_energy += self._peak_energy(buffer)
        statistics.sketch = statistics.sketch + self._sketcher.sketch(buffer, layout.keys[0]).cpu()
        if self._by_parameter:
            for key, gradient in zip(layout.keys, work.gradients, strict=True):
                flat = gradient.reshape(-1)
                statistics.parameters[key] = (flat.numel(), _norm_sq(flat), self._peak_energy(flat))

    def _peak_energy(self, x: torch.Tensor) -> float:
        """Σ n_k·max|g_k|² over scale buckets of n_k elements."""
        padding = -x.numel() % self._bucket_size
        padded = torch.nn.functional.pad(x.float(), (0, padding))
        squares = padded.view(-1, self._bucket_size).abs().amax(dim=1).square()
        return float(squares.sum() * self._bucket_size - squares[-1] * padding)


def _norm_sq(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float32).square())
