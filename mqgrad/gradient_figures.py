"""Figures of a rank's own gradient, taken before it is compressed."""

import math

import torch

from .compressors.base import BucketWork, Compressor
from .rank_statistics import RankStatistics
from .sketch import Sketcher
from .widths import Width


class GradientFigures:
    """Adds up, over the buckets of one iteration, what controllers want to know of the gradient.

    Figures are taken of each parameter and added up in the order of the keys: DDP regroups its buckets after a
    restart, and a sum in their order is another one in the last digits, on which a decision may turn.

    Args:
        seed: of the sketches, equal on all ranks.
        compressor: gives the elements that share one scale, and is tried.
        by_parameter: whether a controller wants those of each parameter, too.
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
        self._figures: dict[int, tuple[float, ...]] = {}  # by key, as RankStatistics.parameters
        self._sketches: dict[int, torch.Tensor] = {}

    def add(self, work: BucketWork) -> None:
        """Take the figures of one bucket: three passes over it."""
        keys, flats = work.layout.keys, [gradient.reshape(-1) for gradient in work.gradients]
        norms_sq = torch.stack([_norm_sq(flat) for flat in flats]).tolist()
        peaks = torch.stack([self._peak_energy(flat) for flat in flats]).tolist()
        sketches = [self._sketcher.sketch(flat, key) for key, flat in zip(keys, flats, strict=True)]
        self._sketches.update(zip(keys, torch.stack(sketches).cpu(), strict=True))
        trials = self._trials(work) if self._by_parameter else [[] for _ in keys]
        figures = zip(work.layout.numels, norms_sq, peaks, trials, strict=True)
        for key, (numel, norm_sq, peak, tried) in zip(keys, figures, strict=True):
            self._figures[key] = (numel, norm_sq, peak, *tried)

    def finish(self, statistics: RankStatistics) -> None:
        """Put the sums over all buckets that were added into the statistics, and forget them."""
        keys = sorted(self._figures)
        figures = [self._figures[key] for key in keys]
        statistics.local_norm_sq = math.fsum(norm_sq for _, norm_sq, *_ in figures)
        statistics.peak_energy = math.fsum(peak for _, _, peak, *_ in figures)
        statistics.sketch = torch.stack([self._sketches[key] for key in keys]).double().sum(dim=0).float()
        if self._by_parameter:
            statistics.parameters = dict(zip(keys, figures, strict=True))
        self._figures, self._sketches = {}, {}

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
                trial += [float(_norm_sq(values - gradient.reshape(-1))), float(_norm_sq(values))]
        return trials

    def _peak_energy(self, x: torch.Tensor) -> torch.Tensor:
        """Σ n_k·max|g_k|² over scale buckets of n_k elements."""
        if x.numel() == 0:
            return x.new_zeros((), dtype=torch.float32)
        padding = -x.numel() % self._bucket_size
        padded = torch.nn.functional.pad(x.float(), (0, padding))
        squares = padded.view(-1, self._bucket_size).abs().amax(dim=1).square()
        return squares.sum() * self._bucket_size - squares[-1] * padding


def _norm_sq(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float32).square()
