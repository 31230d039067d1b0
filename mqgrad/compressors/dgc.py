"""Deep Gradient Compression: top-k of a locally accumulated momentum."""

import dataclasses

import torch

from ..checks import check_count, check_decay, check_not_negative
from .base import BucketWork
from .parameter_memory import ParameterMemory
from .sparsified import Accumulated, Sparsified

_WARMUP_STAGES = 4  # 75 %, 93.75 %, 98.4 % and 99.6 % sparse, then the final ratio


@dataclasses.dataclass(kw_only=True)
class DGC(Sparsified):
    """Deep Gradient Compression (Lin, Han, Mao, Wang and Dally, ICLR 2018).

    Momentum is applied here, before the selection: give the optimizer none. Both u and v are zeroed where they were
    sent ("momentum factor masking"). With one rank nothing is averaged, and there is no momentum either.

    Raises:
        ValueError: for a ratio outside 0..1, a momentum outside 0..1 or a negative number elsewhere.
    """

    state_fields = ("velocity", "accumulated")
    ratio: float = dataclasses.field(default=0.001, kw_only=False)
    """Share of each parameter's elements that a rank sends after the warm-up, at least one: 8 bytes each."""
    momentum: float = 0.9
    """Of the momentum correction; 0 leaves local accumulation alone."""
    clip: float = 0.0
    """What the norm of a bucket's mean gradient is to be at most; each rank clips its own to √W·clip, as the mean of
    W independent ones of that norm has it. (The paper's are clipped to clip/√W, being W-ths of these.) 0: no
    clipping. After a restart DDP's buckets are others for an iteration, and so is what is clipped there."""
    warmup_iterations: int = 0
    """Iterations in which the ratio falls from 1/4 by factors of 4; the paper's is 4 epochs."""
    velocity: ParameterMemory = dataclasses.field(init=False, repr=False, default_factory=ParameterMemory)
    """State: u, the momentum of what has not been sent."""
    accumulated: ParameterMemory = dataclasses.field(init=False, repr=False, default_factory=ParameterMemory)
    """State: v, the sum of u since it was sent last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(momentum=self.momentum)
        check_not_negative(clip=self.clip)
        check_count(0, warmup_iterations=self.warmup_iterations)

    @property
    def applies_momentum(self) -> bool:
        return self.momentum > 0

    @property
    def num_residuals(self) -> int:
        return len(self.accumulated)

    def ratio_at(self, iteration: int) -> float:
        """The ratio of an iteration of the run."""
        if iteration >= self.warmup_iterations:
            return self.ratio
        stage = _WARMUP_STAGES * iteration // self.warmup_iterations
        return max(0.25 ** (stage + 1), self.ratio)

    def accumulate(self, work: BucketWork, world_size: int) -> Accumulated:
        """u ← m·u + g with g clipped; v ← v + u (algorithm 4 of the paper)."""
        gradient = self._clipped(work.layout.pack(work.gradients), world_size)
        velocity, accumulated = self.velocity.flat(work.layout), self.accumulated.flat(work.layout)
        u = self.momentum * velocity + gradient
        v = accumulated + u
        return Accumulated(v, ((u, velocity), (v, accumulated)))

    def _clipped(self, gradient: torch.Tensor, world_size: int) -> torch.Tensor:
        if not self.clip:
            return gradient
        norm = torch.linalg.vector_norm(gradient)
        return gradient * (self.clip * world_size**0.5 / norm.clamp(min=1e-30)).clamp(max=1.0)
