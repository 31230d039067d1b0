"""What a compressor remembers from one iteration to the next, element by element: float32 values by parameter."""

from collections.abc import Set
from typing import TypeVar

import torch

from ..layout import Layout

T = TypeVar("T")


class ParameterMemory:
    """Values keyed by parameter, such as residuals or momenta, handed out as the flat vector of a DDP bucket.

    Uses one float32 copy of the model per object. A layout that changes carries each parameter's values along.
    """

    def __init__(self) -> None:
        self._values: dict[int, torch.Tensor] = {}  # by parameter key: views into the vectors
        self._flats: dict[Layout, torch.Tensor] = {}

    def __len__(self) -> int:
        """Number of parameters that have values."""
        return len(self._values)

    def holds(self, layout: Layout) -> bool:
        """Whether any parameter of the layout has values."""
        return any(map(self.has, layout.keys))

    def has(self, key: int) -> bool:
        """Whether a parameter has values."""
        return key in self._values

    def flat(self, layout: Layout) -> torch.Tensor:
        """Return the values [numel] of a layout, to be updated in place; zero for parameters not seen before."""
        if layout not in self._flats:
            self._flats = without(self._flats, layout)
            self._flats[layout] = self._collect(layout)
        return self._flats[layout]

    def drop(self, layout: Layout) -> None:
        """Forget the values of a layout, such as residuals that have been sent in full."""
        for key in layout.keys:
            self._values.pop(key, None)
        self._flats.pop(layout, None)

    def forget(self, keys: Set[int]) -> None:
        """Forget values by parameter, and with them the memory of the layouts that they were in."""
        for key in keys:
            self._values.pop(key, None)
        self._flats = {layout: flat for layout, flat in self._flats.items() if not keys >= set(layout.keys)}

    def _collect(self, layout: Layout) -> torch.Tensor:
        flat = torch.zeros(layout.numel, dtype=torch.float32, device=layout.bucket_ids.device)
        for key, view in zip(layout.keys, layout.views(flat), strict=True):
            if key in self._values:
                view.copy_(self._values[key])
            self._values[key] = view
        return flat

    def state_dict(self) -> dict[int, torch.Tensor]:
        """Values [parameter numel] by parameter key, whose meaning :class:`.LayoutTable` saves."""
        return {key: values.clone() for key, values in self._values.items()}

    def load_state_dict(self, state: dict[int, torch.Tensor]) -> None:
        """Restore what ``state_dict`` returned."""
        self._values = {int(key): values.clone() for key, values in state.items()}
        self._flats.clear()


def without(by_layout: dict[Layout, T], layout: Layout) -> dict[Layout, T]:
    """What is kept by layout, less what the parameters of another one, into which DDP has regrouped them, are in."""
    return {other: kept for other, kept in by_layout.items() if not set(other.keys) & set(layout.keys)}
