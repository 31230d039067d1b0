"""Where each parameter's gradient lies in the vector that is coded.

DDP regroups its buckets after the first iteration, and again after a restart. So that neither changes what is sent
for a parameter, every parameter starts a scale bucket of its own and has a fixed identity: its error feedback,
its scales and its random numbers do not depend on the DDP bucket it travels in.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

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
    """int64 [K]: elements of no parameter in scale buckets of one."""
    plans: dict[Any, Any] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """What coders work out for it once, by what that depends on."""

    @functools.cached_property
    def end(self) -> int:
        """Where the scale buckets of the last parameter end."""
        bucket_size = self.numel // len(self.bucket_ids)
        return self.offsets[-1] - (-self.numels[-1] // bucket_size) * bucket_size

    @functools.cached_property
    def _pieces(self) -> list[int]:
        """Lengths of each parameter and of what lies between it and the next, in turn."""
        ends = [*self.offsets[1:], self.numel]
        gaps = [end - offset - n for offset, n, end in zip(self.offsets, self.numels, ends, strict=True)]
        return [length for pair in zip(self.numels, gaps, strict=True) for length in pair]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters' parts of a vector [numel], without padding."""
        return list(flat.split_with_sizes(self._pieces)[::2])

    def widths(self, by_key: tuple[Width, ...]) -> tuple[Width, ...]:
        """The width of each parameter.

        Raises:
            ValueError: there are parameters without a width.
        """
        if self.keys[-1] >= len(by_key):
            raise ValueError(f"widths for {len(by_key)} parameters, and parameter {self.keys[-1]} has none")
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


class LayoutTable:
    """Gives parameters their identities, and buckets their layouts."""

    def __init__(self, *, bucket_size: int, world_size: int) -> None:
        self._bucket_size = bucket_size
        self._world_size = world_size
        self.parameters: list[torch.Tensor] = []  # by key; kept alive, so that an id is never reused
        self._keys: dict[int, int] = {}  # by id: tensors compare element by element
        self._first_ids: list[int] = []
        self._next_id = 0
        self._layouts: dict[int, Layout] = {}

    def mean_over_elements(self, values: Sequence[float]) -> float:
        """Mean of one value per parameter, in the order of the keys, weighted by their elements."""
        numels = [parameter.numel() for parameter in self.parameters]
        return sum(n * v for n, v in zip(numels, values, strict=True)) / sum(numels)

    def of(self, bucket: dist.GradBucket) -> tuple[Layout, list[torch.Tensor]]:
        """Return the layout of a bucket, a new object when DDP has regrouped it, and the gradients in its order.

        The order is that of the keys: DDP also reorders parameters within a bucket, and that should move nothing.
        """
        parameters = bucket.parameters()
        bucket_keys = [self._key(parameter) for parameter in parameters]
        order = sorted(range(len(parameters)), key=bucket_keys.__getitem__)
        keys = tuple(bucket_keys[i] for i in order)
        layout = self._layouts.get(bucket.index())
        if layout is None or layout.keys != keys:
            layout = self._build(keys, tuple(parameters[i].numel() for i in order), parameters[0].device)
            self._layouts[bucket.index()] = layout
        gradients = bucket.gradients()
        return layout, [gradients[i] for i in order]

    def _key(self, parameter: torch.Tensor) -> int:
        """Number parameters as they first appear: DDP's initial buckets are the same in every run of a model."""
        if id(parameter) not in self._keys:
            self._keys[id(parameter)] = len(self._keys)
            self.parameters.append(parameter)
            self._first_ids.append(self._next_id)
            self._next_id += self._scale_buckets(parameter.numel())
        return self._keys[id(parameter)]

    def _scale_buckets(self, numel: int) -> int:
        return -(-numel // self._bucket_size)

    def _build(self, keys: tuple[int, ...], numels: tuple[int, ...], device: torch.device) -> Layout:
        counts = [self._scale_buckets(n) for n in numels]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        shard = -(-sum(counts) // self._world_size)
        ids = torch.zeros(shard * self._world_size, dtype=torch.int64)
        for key, start, count in zip(keys, starts, counts, strict=True):
            ids[start : start + count] = torch.arange(self._first_ids[key], self._first_ids[key] + count)
        return Layout(
            keys=keys,
            numels=numels,
            offsets=tuple(start * self._bucket_size for start in starts),
            numel=len(ids) * self._bucket_size,
            shard_numel=shard * self._bucket_size,
            bucket_ids=ids.to(device),
            padding=self._padding(starts, numels).to(device),
        )

    def _padding(self, starts: list[int], numels: tuple[int, ...]) -> torch.Tensor:
        """Padding of parameters that start at these scale buckets."""
        padding = [torch.empty(0, dtype=torch.int64)]
        for start, numel in zip(starts, numels, strict=True):
            end = start * self._bucket_size + numel
            padding.append(torch.arange(end, end + -numel % self._bucket_size))
        return torch.cat(padding)
