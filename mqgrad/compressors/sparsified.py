"""Sparse gradients: each rank's largest elements with their indices, and a memory of the others."""

import abc
import dataclasses
import math
from typing import NamedTuple

import torch

from ..checks import check_share
from ..collectives.transport import Transport
from ..layout import Layout
from ..stopwatch import add_seconds
from .base import BucketWork, CompressorDefaults, Step


class Accumulated(NamedTuple):
    """What a rank could send of a bucket, before it is known what it does send."""

    values: torch.Tensor
    """float32 [N]: the gradient with all that was not sent before, in the order of the layout."""
    memories: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """float32 [N] each: what to remember if nothing were sent, and where it is remembered."""

    def remember_all_but(self, sent: torch.Tensor) -> None:
        """Update the memories, zero at the elements that were sent."""
        for value, memory in self.memories:
            value[sent] = 0.0
            memory.copy_(value)

    def remember_momentum(self) -> None:
        """Update the memories where everything was sent: nothing is left to send, and a momentum goes on. DGC masks
        it where it would act on what was sent late, and nothing was."""
        self.values.zero_()
        for value, memory in self.memories:
            memory.copy_(value)


@dataclasses.dataclass(kw_only=True)
class Sparsified(CompressorDefaults):
    """Averages the largest elements of what each rank has accumulated.

    Raises:
        ValueError: for a ratio outside 0..1.
    """

    ratio: float = dataclasses.field(default=0.01, kw_only=False)
    """Share of each parameter's elements that a rank sends, at least one: 8 bytes each."""

    def __post_init__(self) -> None:
        check_share(ratio=self.ratio)

    @abc.abstractmethod
    def accumulate(self, work: BucketWork, world_size: int) -> Accumulated:
        """Add the gradient to what was not sent before. Changes no state."""

    def ratio_at(self, iteration: int) -> float:
        """The ratio of an iteration of the run."""
        return self.ratio

    def average_(self, work: BucketWork, step: Step) -> None:
        """Average through the largest elements.

        1. Add what was not sent before to the gradient.
        2. Exchange the largest elements of each parameter and average them.
        3. Remember the others; where an element of any rank is not finite, the memory stays as it was.
        """
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            accumulated = self.accumulate(work, step.transport.world_size)
            indices = torch.cat(
                largest_indices(accumulated.values, work.layout, self.ratio_at(step.iteration))
            )
        # 2.
        mean = average_elements(accumulated.values, indices, step.transport)
        # 3.
        with add_seconds(step.costs, "decode_seconds"):
            work.layout.unpack(mean, work.gradients)
            if bool(work.buffer.isfinite().all()):  # which may be of half precision
                accumulated.remember_all_but(indices)


def num_largest(numel: int, ratio: float) -> int:
    """Elements to send of ``numel``."""
    return min(max(math.ceil(ratio * numel), 1), numel)


def largest_indices(
    flat: torch.Tensor, layout: Layout, ratio: float, *, is_sorted: bool = False
) -> list[torch.Tensor]:
    """Where the largest magnitudes of each parameter lie in ``flat`` [N]: int64 [K] each.

    A NaN counts as the largest. Chosen parameter by parameter, so that the buckets into which DDP groups them change
    nothing.

    Args:
        is_sorted: the largest comes first.
    """
    return [
        offset + view.abs().topk(num_largest(view.numel(), ratio), sorted=is_sorted).indices
        for offset, view in zip(layout.offsets, layout.views(flat), strict=True)
    ]


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
