"""PowerSGD: each gradient matrix as the product of two thin ones, found by one power iteration per step.

PyTorch's hook of this name is not used. It keeps its state by bucket index, so a checkpoint does not fit the buckets
of a resumed run, and the first iterations must go uncompressed; with small buckets its chained callbacks abort on
Gloo; and its bytes would go uncounted. The tests hold this file to its results.
"""

import dataclasses
import math
from collections.abc import Set
from typing import NamedTuple

import torch

from ..checks import check_count, check_range
from ..collectives.transport import Transport
from ..seeding import stream_seed
from ..stopwatch import add_seconds
from .base import BucketWork, CompressorDefaults, Step


class LowRank(NamedTuple):
    """One parameter's gradient as a matrix of n rows and m columns, on its way to rank r."""

    key: int
    gradient: torch.Tensor
    """The view into the bucket."""
    matrix: torch.Tensor
    """float32 [n, m], with the residual added."""
    p: torch.Tensor
    """float32 [n, r]: this rank's part of the left factor."""


@dataclasses.dataclass(kw_only=True)
class PowerSGD(CompressorDefaults):
    """PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithms 1 and 2), with error feedback.

    Every rank orthonormalizes the same sums itself, as PyTorch's hook does, and multiplies the factors: ranks end
    with the same bytes where their linear algebra rounds alike. With other numbers of threads it does not, so ranks
    compare them; processors of different kinds may not do either, which nobody checks.

    Raises:
        ValueError: for a rank below 1, a rate below 1 or a negative iteration.
    """

    state_fields = ("residuals", "factors")
    rank: int = dataclasses.field(default=1, kw_only=False)
    """Columns of the factors."""
    start_iteration: int = 0
    """Iterations that are averaged uncompressed first; PyTorch's ``start_powerSGD_iter``, 1000 there."""
    min_compression_rate: float = 2.0
    """A matrix is compressed if its factors are smaller by more than this; all others are averaged in fp32."""
    error_feedback: bool = True
    """Keep what the factors left out and send it later: one fp32 copy of the compressed parameters."""
    warm_start: bool = True
    """Begin each power iteration with the last one's Q instead of a random one."""
    residuals: dict[int, torch.Tensor] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """State: float32 [n, m] by parameter key."""
    factors: dict[int, torch.Tensor] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """State: the last Q, float32 [m, r] by parameter key; none where it was zero."""

    def __post_init__(self) -> None:
        check_count(rank=self.rank)
        check_count(0, start_iteration=self.start_iteration)
        check_range(1.0, math.inf, min_compression_rate=self.min_compression_rate)

    @property
    def num_residuals(self) -> int:
        return len(self.residuals)

    @property
    def chosen(self) -> str:
        return f"{torch.get_num_threads()} threads of linear algebra: set OMP_NUM_THREADS alike on all ranks"

    def forget(self, keys: Set[int]) -> None:
        for key in keys:
            self.residuals.pop(key, None)
            self.factors.pop(key, None)

    def average_(self, work: BucketWork, step: Step) -> None:
        if step.iteration < self.start_iteration:
            step.transport.average_(work.buffer)
        else:
            self._average_low_rank(work, step)

    def _average_low_rank(self, work: BucketWork, step: Step) -> None:
        """Average through factors.

        1. Add the residual to each matrix M worth compressing; P = M·Q, with the columns of Q made orthonormal.
        2. Sum all P over ranks, and with them, in the same all-reduce, whatever is not compressed.
        3. Make the columns of P orthonormal; Q = Mᵀ·P, averaged over ranks.
        4. The mean is P·Qᵀ; keep M − P·Qᵀ as the residual.
        """
        transport = step.transport
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            parts = [
                self._begin(key, gradient, step)
                for key, gradient in zip(work.layout.keys, work.gradients, strict=True)
                if self._is_worthwhile(gradient)
            ]
            others = [g for g in work.gradients if not self._is_worthwhile(g)]
        # 2.
        sums = _all_reduce([part.p for part in parts] + [other.float() for other in others], transport)
        for other, total in zip(others, sums[len(parts) :], strict=True):
            other.copy_(total.div_(transport.world_size))
        # 3.
        with add_seconds(step.costs, "encode_seconds"):
            bases = [_orthonormal(p) for p in sums[: len(parts)]]
            projections = [part.matrix.T @ p for part, p in zip(parts, bases, strict=True)]
        qs = _all_reduce(projections, transport)
        # 4.
        with add_seconds(step.costs, "decode_seconds"):
            for part, p, q in zip(parts, bases, qs, strict=True):
                self._finish(part, p, q.div_(transport.world_size))

    def _is_worthwhile(self, gradient: torch.Tensor) -> bool:
        if gradient.ndim < 2 or gradient.numel() == 0:
            return False
        rows, columns = _as_matrix(gradient).shape
        return (rows + columns) * self._rank_of(rows, columns) * self.min_compression_rate < rows * columns

    def _rank_of(self, rows: int, columns: int) -> int:
        return min(rows, columns, self.rank)

    def _begin(self, key: int, gradient: torch.Tensor, step: Step) -> LowRank:
        matrix = _as_matrix(gradient).float()
        if key in self.residuals:
            matrix = matrix + self.residuals[key].to(matrix.device)  # loaded ones may be on the CPU
        q = self.factors.get(key)
        if q is None:
            generator = torch.Generator().manual_seed(stream_seed(step.seed, step.iteration, key))
            size = matrix.shape[1], self._rank_of(*matrix.shape)
            q = torch.randn(size, generator=generator, dtype=torch.float32)
        return LowRank(key, gradient, matrix, p=matrix @ _orthonormal(q.to(matrix.device)))

    def _finish(self, part: LowRank, p: torch.Tensor, q: torch.Tensor) -> None:
        mean = p @ q.T
        applied = mean.view_as(part.gradient).to(part.gradient.dtype)
        # An overflowing step is not applied: keep what was there. P and Q are the same on every rank.
        halves = () if part.gradient.dtype == mean.dtype else (applied,)  # which hold less than P and Q
        if all(bool(x.isfinite().all()) for x in (p, q, *halves)):
            if self.error_feedback:
                self.residuals[part.key] = part.matrix - mean
            self.factors.pop(part.key, None)
            if self.warm_start and bool(q.any()):  # from zeros it would begin with the first unit vectors
                self.factors[part.key] = q
        part.gradient.copy_(applied)  # last: the matrix may be a view of it


def _as_matrix(gradient: torch.Tensor) -> torch.Tensor:
    """[first dimension, all others], as PyTorch and the paper shape a convolution's weight."""
    return gradient.reshape(gradient.shape[0], -1)


def _orthonormal(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.qr(x).Q


def _all_reduce(tensors: list[torch.Tensor], transport: Transport) -> list[torch.Tensor]:
    """Sums over ranks of several tensors, in one collective; none for no tensors."""
    if not tensors:
        return []
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    transport.all_reduce_(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]
