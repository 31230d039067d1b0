"""Where each parameter's gradient lies in the vector that is coded."""

import dataclasses
import functools
from typing import Any

import torch

from .widths import Width


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Layout:
    """The coded vector of one DDP bucket: [W, shard_numel] elements.

    What lies between parameters and behind the last one is zero, unless a code asks for more
    (:meth:`.VectorCodec.repeats_padding`): scales are maxima, or means weighted by the magnitudes.
    """

    keys: tuple[int, ...]
    """Identity of each parameter, ascending."""
    numels: tuple[int, ...]
    offsets: tuple[int, ...]
    """Start of each parameter, a multiple of the scale-bucket size."""
    numel: int
    """Elements with padding, a multiple of world size times the scale-bucket size."""
    shard_numel: int
    """Elements that each rank sums and re-encodes."""
    bucket_ids: torch.Tensor
    """int64 [numel / bucket_size]: identity of each scale bucket, for the random numbers."""
    padding: torch.Tensor
    """int64 [K]: elements of no parameter in scale buckets of one, ascending."""
    first_parameters: int = 0
    """:attr:`.LayoutTable.first_parameters` when it was built, its own among them."""
    plans: dict[Any, Any] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """What coders work out for it once, by what that depends on."""

    @functools.cached_property
    def end(self) -> int:
        """Where the scale buckets of the last parameter end."""
        bucket_size = self.numel // len(self.bucket_ids)
        return self.offsets[-1] - (-self.numels[-1] // bucket_size) * bucket_size

    @functools.cached_property
    def padding_sources(self) -> torch.Tensor:
        """int64 [K]: for each element of the padding, the one of its scale bucket that a code repeats there, if it
        does: those of the parameter over again (:meth:`mqgrad.cuda_ext.Scattered.continued`)."""
        bucket_size, device = self.numel // len(self.bucket_ids), self.padding.device
        sources = [torch.empty(0, dtype=torch.int64, device=device)]
        for offset, numel in zip(self.offsets, self.numels, strict=True):
            if used := numel % bucket_size:
                repeated = torch.arange(bucket_size - used, device=device) % used
                sources.append(offset + numel - used + repeated)
        return torch.cat(sources)

    def padding_in(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """:attr:`padding` and :attr:`padding_sources` in a part of the vector, counted from its start; looked up
        once, as a GPU is waited for."""
        key = (part.start, part.stop)
        if key not in self._paddings:
            among = (self.padding >= part.start) & (self.padding < part.stop)
            self._paddings[key] = (
                self.padding[among] - part.start,
                self.padding_sources[among] - part.start,
            )
        return self._paddings[key]

    @functools.cached_property
    def _paddings(self) -> dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]:
        return {}

    @functools.cached_property
    def _pieces(self) -> list[int]:
        """Lengths of each parameter and of what lies between it and the next, in turn."""
        ends = [*self.offsets[1:], self.numel]
        gaps = [end - offset - n for offset, n, end in zip(self.offsets, self.numels, ends, strict=True)]
        return [length for pair in zip(self.numels, gaps, strict=True) for length in pair]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters' parts of a vector [numel], without padding."""
        return list(flat.split_with_sizes(self._pieces)[::2])

    def ids_of(self, part: slice) -> torch.Tensor:
        """int64 [buckets of the part]: the identities of the scale buckets that make up a part of the vector."""
        bucket_size = self.numel // len(self.bucket_ids)
        return self.bucket_ids[part.start // bucket_size : part.stop // bucket_size]

    def widths(self, by_key: tuple[Width, ...]) -> tuple[Width, ...]:
        """The width of each parameter.

        Raises:
            ValueError: there are parameters without a width.
        """
        if self.keys[-1] >= len(by_key):
            raise ValueError(
                f"widths for {len(by_key)} parameters, and parameter {self.keys[-1]} has none: where some appear "
                "later in a run (by DDP's skip_all_reduce_unused_params, for one), take a rule with one width for all"
            )
        return tuple(by_key[key] for key in self.keys)

    def pack(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Copy gradients of any floating dtype to a float32 vector [numel]."""
        flat = torch.zeros(self.numel, dtype=torch.float32, device=gradients[0].device)
        torch._foreach_copy_(self.views(flat), [gradient.reshape(-1) for gradient in gradients])
        return flat

    def unpack(self, flat: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        """Copy a vector [numel] back into the gradients."""
        views = zip(self.views(flat), gradients, strict=True)
        torch._foreach_copy_(gradients, [view.view_as(gradient) for view, gradient in views])
