"""Error feedback of the shards that a rank owns."""

import itertools
from collections.abc import Callable, Set
from typing import NamedTuple

import torch

from ..layout import Layout
from .feedback import Residual
from .parameter_memory import without


class _Piece(NamedTuple):
    """What this rank holds of one parameter's residual, and where the parameter lay in its bucket."""

    values: torch.Tensor
    """float32, a view into the residual of the shard; empty where other ranks own all of the parameter."""
    start: int
    """Where in the parameter."""
    offset: int
    shard_numel: int


class ShardFeedback:
    """Residuals of what the owners of shards code, keyed by parameter, handed out by DDP bucket.

    All ranks together use one float32 copy of the model. Where a layout that changes gives elements to other owners,
    those get their residuals, too.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, _Piece] = {}  # by parameter key
        self._residuals: dict[Layout, Residual] = {}

    def residual(self, layout: Layout, owned: slice, all_reduce_: Callable[[torch.Tensor], None]) -> Residual:
        """Return the residual of the elements of a layout that this rank owns; zero for parameters not seen before.

        A collective, where elements have moved to other owners.

        Args:
            layout: of the bucket.
            owned: elements of its vector, whole shards.
            all_reduce_: sums a float32 vector over the ranks, in place.
        """
        if layout not in self._residuals:
            self._residuals = without(self._residuals, layout)
            self._residuals[layout] = self._collect(layout, owned, all_reduce_)
        return self._residuals[layout]

    def holds(self, layout: Layout) -> bool:
        """Whether any parameter of the layout has a residual, on whatever rank."""
        return any(key in self._pieces for key in layout.keys)

    def drop(self, layout: Layout) -> None:
        """Forget the residuals of a layout, after they have been sent in full."""
        for key in layout.keys:
            self._pieces.pop(key, None)
        self._residuals.pop(layout, None)

    def forget(self, keys: Set[int]) -> None:
        """Forget residuals by parameter, and with them the memory of the layouts that they were in."""
        for key in keys:
            self._pieces.pop(key, None)
        kept = {layout: own for layout, own in self._residuals.items() if not keys >= set(layout.keys)}
        self._residuals = kept

    def _collect(self, layout: Layout, owned: slice, all_reduce_: Callable[[torch.Tensor], None]) -> Residual:
        if self.holds(layout):
            values = self._regrouped(layout, all_reduce_)[owned].clone()
        else:
            values = _zeros(layout, owned.stop - owned.start)
        for key, offset, numel in zip(layout.keys, layout.offsets, layout.numels, strict=True):
            first, last = (min(max(at, owned.start), owned.stop) for at in (offset, offset + numel))
            held = values[first - owned.start : last - owned.start]
            self._pieces[key] = _Piece(held, max(first - offset, 0), offset, layout.shard_numel)
        return Residual(values, owned.start, layout)

    def _regrouped(self, layout: Layout, all_reduce_: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """The vector [numel] of a layout, right where this rank owns it now, from the pieces of those before it."""
        vector = _zeros(layout, layout.numel)
        moved = _zeros(layout, layout.numel).bool()
        parts = zip(layout.keys, layout.offsets, layout.views(vector), layout.views(moved), strict=True)
        for key, offset, view, has_moved in parts:
            if key in self._pieces and view.numel():
                piece = self._pieces[key]
                view[piece.start : piece.start + piece.values.numel()] = piece.values
                _mark_moved(has_moved, (piece.offset, piece.shard_numel), (offset, layout.shard_numel))
        if bool(moved.any()):  # the same on every rank
            values = vector[moved]
            all_reduce_(values)  # each is other than zero on its old owner alone, so the sum is exact
            vector[moved] = values
        return vector

    def state_dict(self) -> dict[int, tuple[torch.Tensor, int, int, int]]:
        """The pieces by parameter key, whose meaning :class:`.LayoutTable` saves."""
        return {key: (p.values.clone(), p.start, p.offset, p.shard_numel) for key, p in self._pieces.items()}

    def load_state_dict(self, state: dict[int, tuple[torch.Tensor, int, int, int]]) -> None:
        """Restore what ``state_dict`` returned."""
        self._pieces = {int(key): _Piece(p[0].clone(), *map(int, p[1:])) for key, p in state.items()}
        self._residuals.clear()


def _zeros(layout: Layout, numel: int) -> torch.Tensor:
    return torch.zeros(numel, dtype=torch.float32, device=layout.bucket_ids.device)


def _mark_moved(moved: torch.Tensor, before: tuple[int, int], now: tuple[int, int]) -> None:
    """Set the elements of a parameter that are in another shard now, by where it began and begins and the elements of
    a shard. Stretch by stretch: a number for each element would take several times the memory of the parameter."""
    starts = {start for offset, shard in (before, now) for start in range(-offset % shard, len(moved), shard)}
    stretches = sorted({0, *starts, len(moved)})
    for first, end in itertools.pairwise(stretches):
        moved[first:end] = (before[0] + first) // before[1] != (now[0] + first) // now[1]
