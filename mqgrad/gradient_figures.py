"""Figures of a rank's own gradient, taken before it is compressed."""

import torch

from .layout import Layout
from .sketch import Sketcher
from .statistics import RankStatistics


class GradientFigures:
    """Adds up, over the buckets of one iteration, what controllers want to know of the gradient.

    Args:
        seed: of the sketches, equal on all ranks.
        bucket_size: elements that share one scale.
    """

    def __init__(self, seed: int, bucket_size: int) -> None:
        self._sketcher = Sketcher(seed)
        self._bucket_size = bucket_size

    def add(self, buffer: torch.Tensor, layout: Layout, statistics: RankStatistics) -> None:
        """Add the figures of one bucket [N] to the statistics: three passes over it."""
        statistics.local_norm_sq += float(torch.linalg.vector_norm(buffer, dtype=torch.float32).square())
        statistics.peak_energy += self._peak_energy(buffer)
        statistics.sketch = statistics.sketch + self._sketcher.sketch(buffer, layout.keys[0]).cpu()

    def _peak_energy(self, buffer: torch.Tensor) -> float:
        """Σ n·max|g|² over scale buckets."""
        padded = torch.nn.functional.pad(buffer.float(), (0, -buffer.numel() % self._bucket_size))
        peaks = padded.view(-1, self._bucket_size).abs().amax(dim=1)
        return float(peaks.square().sum()) * self._bucket_size
