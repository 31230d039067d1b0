"""Figures of a rank's own gradient, taken before it is compressed."""

import math
from collections.abc import Sequence

import torch

from mqgrad.cuda_ext import gradient_figures

from ..codecs.quantization_noise import squared_norm
from ..compressors.base import BucketWork, Compressor
from ..statistics.rank import RankStatistics
from ..widths import Width


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
        self._seed = seed
        self._compressor = compressor
        self._by_parameter = by_parameter
        self._trial_widths = trial_widths
        self._figures: dict[int, torch.Tensor] = {}  # by key, as the op's rows
        self._parameters: dict[int, tuple[float, ...]] = {}  # by key, as RankStatistics.parameters

    def add(self, work: BucketWork) -> None:
        """Take the figures of one bucket: one pass over it."""
        keys, flats = work.layout.keys, [gradient.reshape(-1) for gradient in work.gradients]
        rows = gradient_figures(flats, keys, self._compressor.bucket_size, seed=self._seed).cpu()
        self._figures.update(zip(keys, rows, strict=True))
        if not self._by_parameter:
            return
        figures = zip(keys, work.layout.numels, rows[:, :2].tolist(), self._trials(work), strict=True)
        self._parameters |= {key: (numel, *sizes, *tried) for key, numel, sizes, tried in figures}

    def finish(self, statistics: RankStatistics, numels: Sequence[int]) -> None:
        """Put the sums over all buckets that were added into the statistics, and forget them.

        Args:
            numels: of the model's parameters, by key: those of buckets that rounds leave alone have a gradient of
                zero, and those that are gone no elements.
        """
        rows = torch.stack([self._figures[key] for key in sorted(self._figures)])
        statistics.local_norm_sq, statistics.peak_energy = map(math.fsum, rows[:, :2].T.tolist())
        statistics.sketch = rows[:, 2:].sum(dim=0).float()
        if self._by_parameter:
            length = max(map(len, self._parameters.values()))
            known = {**{key: (float(numel),) for key, numel in enumerate(numels)}, **self._parameters}
            statistics.parameters = {key: (*row, *[0.0] * (length - len(row))) for key, row in known.items()}
        self._figures, self._parameters = {}, {}

    def _trials(self, work: BucketWork) -> list[list[float]]:
        """Of each parameter: ‖Q(g) − g‖² and ‖Q(g)‖² at the trial widths, one after another."""
        if work.buffer.numel() == 0:  # what is coded of nothing is filled in in the end
            return [[] for _ in work.gradients]
        trials: list[list[float]] = [[] for _ in work.gradients]
        for bits in self._trial_widths:
            coded = self._compressor.tried(work, bits)
            if coded is None:
                return [[] for _ in work.gradients]
            for trial, values, gradient in zip(trials, coded, work.gradients, strict=True):
                trial += [squared_norm(values - gradient.reshape(-1)), squared_norm(values)]
        return trials
