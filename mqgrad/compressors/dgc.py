"""Deep Gradient Compression: top-k of a locally accumulated momentum."""

import dataclasses
from typing import Any

import torch

from ..feedback import ErrorFeedback
from ..widths import Width
from .base import BucketWork, Stateless, Step
from .coded import add_seconds
from .top_k import average_elements, check_ratio, largest_indices

_WARMUP_STAGES = 4  # 75 %, 93.75 %, 98.4 % and 99.6 % sparse, then the final ratio


@dataclasses.dataclass(kw_only=True, slots=True)
class DGC(Stateless):
    """Deep Gradient Compression (Lin, Han, Mao, Wang and Dally, ICLR 2018).

    Momentum is applied here, before the selection: give the optimizer none.

    Raises:
        ValueError: for a ratio outside 0..1, a momentum outside 0..1 or a negative number elsewhere.
    """

    ratio: float = dataclasses.field(default=0.001, kw_only=False)
    """Share of each parameter's elements that a rank sends after the warm-up, at least one: 8 bytes each."""
    momentum: float = 0.9
    """Of the momentum correction; 0 leaves local accumulation alone."""
    clip: float = 0.0
    """Bound on the norm of the mean gradient of a bucket; each rank clips its own to clip/√W. 0 does not clip."""
    warmup_iterations: int = 0
    """Iterations in which the ratio falls from 1/4 by factors of 4; the paper's is 4 epochs."""
    velocity: ErrorFeedback = dataclasses.field(init=False, repr=False, default_factory=ErrorFeedback)
    """State: u, the momentum of what has not been sent."""
    accumulated: ErrorFeedback = dataclasses.field(init=False, repr=False, default_factory=ErrorFeedback)
    """State: v, the sum of u since it was sent last."""

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum!r} must be at least 0 and less than 1")
        if not self.clip >= 0:
            raise ValueError(f"clip {self.clip!r} must not be negative")
        if self.warmup_iterations < 0:
            raise ValueError(f"warmup_iterations {self.warmup_iterations!r} must not be negative")

    @property
    def widths(self) -> tuple[Width, ...]:
        """32: values travel in fp32."""
        return (32,)

    @property
    def num_residuals(self) -> int:
        return len(self.accumulated)

    def ratio_at(self, iteration: int) -> float:
        """The ratio of an iteration of the run."""
        if iteration >= self.warmup_iterations:
            return self.ratio
        stage = _WARMUP_STAGES * iteration // self.warmup_iterations
        return max(0.25 ** (stage + 1), self.ratio)

    def average_(self, work: BucketWork, step: Step) -> None:
        """Average through the largest accumulated elements (algorithm 4 of the paper).

        1. Clip the gradient; u ← m·u + g; v ← v + u.
        2. Exchange the largest elements of v in each parameter and average them.
        3. Zero u and v where they were sent; where an element of any rank is not finite, both stay as they were.
        """
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            gradient = self._clipped(
                work.layout.pack(work.gradients, fill_padding=False), step.transport.world_size
            )
            velocity, accumulated = self.velocity.flat(work.layout), self.accumulated.flat(work.layout)
            u = self.momentum * velocity + gradient
            v = accumulated + u
            indices = largest_indices(v, work.layout, self.ratio_at(step.iteration))
        # 2.
        mean = average_elements(v, indices, step.transport)
        with add_seconds(step.costs, "decode_seconds"):
            work.layout.unpack(mean, work.gradients)
            # 3.
            if bool(mean.isfinite().all()):
                u[indices] = 0.0
                v[indices] = 0.0
                velocity.copy_(u)
                accumulated.copy_(v)

    def _clipped(self, gradient: torch.Tensor, world_size: int) -> torch.Tensor:
        if not self.clip:
            return gradient
        norm = torch.linalg.vector_norm(gradient)
        return gradient * (self.clip / world_size**0.5 / norm.clamp(min=1e-30)).clamp(max=1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": self.velocity.state_dict(), "accumulated": self.accumulated.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.velocity.load_state_dict(state["velocity"])
        self.accumulated.load_state_dict(state["accumulated"])
