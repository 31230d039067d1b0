"""Top-k: each rank's largest elements with their indices, and a memory of the others."""

import dataclasses
import math
from typing import Any

import torch

from ..feedback import ErrorFeedback
from ..layout import Layout
from ..transport import Transport
from ..widths import Width
from .base import BucketWork, Stateless, Step
from .coded import add_seconds


@dataclasses.dataclass(kw_only=True, slots=True)
class TopK(Stateless):
    """Sparsified SGD with memory (Aji and Heafield, EMNLP 2017; Stich, Cordonnier and Jaggi, NeurIPS 2018).

    Raises:
        ValueError: for a ratio outside 0..1.
    """

    ratio: float = dataclasses.field(default=0.01, kw_only=False)
    """Share of each parameter's elements that a rank sends, at least one: 8 bytes each."""
    error_feedback: bool = True
    """Keep what was not sent and add it to the next gradient: one fp32 copy of the model."""
    memory: ErrorFeedback = dataclasses.field(init=False, repr=False, default_factory=ErrorFeedback)
    """State: of each rank's own gradient."""

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    @property
    def widths(self) -> tuple[Width, ...]:
        """32: values travel in fp32."""
        return (32,)

    @property
    def num_residuals(self) -> int:
        return len(self.memory)

    def average_(self, work: BucketWork, step: Step) -> None:
        """Average through the largest elements.

        1. Add the memory to the gradient.
        2. Exchange the largest elements of each parameter and average them.
        3. Remember the others; where an element of any rank is not finite, the memory stays as it was.
        """
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            flat = work.layout.pack(work.gradients, fill_padding=False)
            memory = self.memory.flat(work.layout) if self.error_feedback else None
            if memory is not None:
                flat += memory
            indices = largest_indices(flat, work.layout, self.ratio)
        # 2.
        mean = average_elements(flat, indices, step.transport)
        with add_seconds(step.costs, "decode_seconds"):
            work.layout.unpack(mean, work.gradients)
            # 3.
            if memory is not None and bool(mean.isfinite().all()):
                flat[indices] = 0.0
                memory.copy_(flat)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])


def check_ratio(ratio: float) -> None:
    """Raise ``ValueError`` unless ``ratio`` is a share of the elements."""
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio {ratio!r} must be more than 0 and at most 1")


def num_largest(numel: int, ratio: float) -> int:
    """Elements to send of ``numel``."""
    return min(max(math.ceil(ratio * numel), 1), numel)


def largest_indices(flat: torch.Tensor, layout: Layout, ratio: float) -> torch.Tensor:
    """Where the largest magnitudes of each parameter lie in ``flat`` [N]: int64 [K]. A NaN counts as the largest.

    Chosen parameter by parameter, so that the buckets into which DDP groups them change nothing.
    """
    return torch.cat(
        [
            offset + view.abs().topk(num_largest(view.numel(), ratio), sorted=False).indices
            for offset, view in zip(layout.offsets, layout.views(flat), strict=True)
        ]
    )


def average_elements(flat: torch.Tensor, indices: torch.Tensor, transport: Transport) -> torch.Tensor:
    """Mean over ranks of ``flat`` [N] at each rank's own ``indices`` [K], zero elsewhere, alike on all ranks.

    Raises:
        IndexError: another rank sent an index outside 0..N−1.
    """
    index_dtype = torch.int32 if flat.numel() < 2**31 else torch.int64
    values, positions = flat[indices].view(torch.uint8), indices.to(index_dtype).view(torch.uint8)
    total = torch.zeros_like(flat)
    for payload in transport.all_gather(torch.cat([values, positions])):
        sent = payload[: len(values)].clone().view(torch.float32)
        where = payload[len(values) :].clone().view(index_dtype).long()
        total.index_add_(0, where, sent)
    return total.div_(transport.world_size)
