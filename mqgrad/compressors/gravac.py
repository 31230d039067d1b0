"""GraVAC as published: top-k or DGC with a compression factor that is searched while training."""

import dataclasses
import math
from collections.abc import Set
from typing import Any, Literal

import torch

from ..checks import check_choice
from ..layout import Layout
from ..saved_state import check_keys, restore_fields, saved_fields
from ..stopwatch import add_seconds
from .base import BucketWork, CompressorDefaults, Step
from .dgc import DGC
from .factor_search import DENSE, Energies, FactorSearch
from .sparsified import Sparsified, average_elements, largest_indices, num_largest
from .top_k import TopK


@dataclasses.dataclass(kw_only=True)
class GraVAC(FactorSearch, CompressorDefaults):
    """GraVAC (Tyagi & Swany 2023) over the factors 1/ratio of a sparse compressor; see :class:`FactorSearch`.

    Gains are measured every iteration on what the rank has accumulated, feedback included. DDP hands out one bucket
    at a time and all of them take the same factor, so an iteration's factor follows from the iterations before it:
    the very first sends everything. Seconds are measured, under a modelled clock, too.

    Raises:
        ValueError: for an unknown base, or a setting out of its range.
    """

    base: Literal["top-k", "dgc"] = "top-k"
    """What selects the elements and keeps the others."""
    momentum: float = 0.9
    """Of ``dgc``, which applies it: give the optimizer none. Not used by ``top-k``."""
    sparsifier: Sparsified = dataclasses.field(init=False, repr=False)
    energies: dict[int, tuple[float, float, float]] = dataclasses.field(
        init=False, repr=False, default_factory=dict
    )
    """State: this rank's ``Energies`` of each parameter in the last iteration. By parameter, so that their sum does
    not depend on DDP's buckets."""
    iteration: int = dataclasses.field(init=False, repr=False, default=-1)
    """State: the iteration that the factor was chosen for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("base", self.base, ("top-k", "dgc"))
        self.sparsifier = TopK() if self.base == "top-k" else DGC(momentum=self.momentum)

    @property
    def applies_momentum(self) -> bool:
        return self.base == "dgc" and self.momentum > 0

    @property
    def num_residuals(self) -> int:
        return self.sparsifier.num_residuals

    def forget(self, keys: Set[int]) -> None:
        self.sparsifier.forget(keys)

    def figures(self) -> dict[str, float]:
        """The factor in use, 1 where everything is sent, and its gain."""
        gain = 1.0 if self.sent == DENSE else self.gains[self.sent]
        return {"compression_factor": self.sent, "gain": gain}

    def average_(self, work: BucketWork, step: Step) -> None:
        """Average through as many elements as the search allows.

        1. At the first bucket of an iteration, exchange the energies of the last one and choose the factor.
        2. Add what was not sent before to the gradient, and measure what both factors would send of it.
        3. Exchange the largest elements and average them; or all of them, in a plain all-reduce.
        4. Remember the others; where an element of any rank is not finite, the memory stays as it was.
        """
        # 1.
        if step.iteration != self.iteration:
            self._begin_iteration(step)
        # 2.
        with add_seconds(step.costs, "encode_seconds"):
            accumulated = self.sparsifier.accumulate(work, step.transport.world_size)
            values = accumulated.values
            largest = largest_indices(values, work.layout, 1 / self.safe, is_sorted=True)
            self._measure(values, largest, work.layout)
        # 3.
        if self.sent == DENSE:
            work.layout.unpack(values, work.gradients)
            step.transport.average_(work.buffer)
        else:
            indices = torch.cat(_first(largest, work.layout, self.sent))
            mean = average_elements(values, indices, step.transport)
            work.layout.unpack(mean, work.gradients)
        # 4.
        with add_seconds(step.costs, "decode_seconds"):
            if not bool(work.buffer.isfinite().all()):
                return
            if self.sent == DENSE:
                accumulated.remember_momentum()
            else:
                accumulated.remember_all_but(indices)

    def _begin_iteration(self, step: Step) -> None:
        self.iteration = step.iteration
        if self.energies:
            sums = [math.fsum(column) for column in zip(*self.energies.values(), strict=True)]
            row = torch.tensor([*sums, step.seconds], dtype=torch.float64, device=step.transport.device)
            rows = step.transport.all_gather(row).tolist()
            *energies, seconds = (sum(column) for column in zip(*rows, strict=True))
            self.observe(Energies(*energies), seconds / step.transport.world_size)
        self.energies = {}
        self.choose()

    def _measure(self, values: torch.Tensor, largest: list[torch.Tensor], layout: Layout) -> None:
        """Note each parameter's energies. What the candidate sends is part of what the safe factor sends."""
        candidate = _first(largest, layout, self.candidate)
        rows = torch.stack(
            [
                torch.stack([_norm_sq(view), _norm_sq(values[safe]), _norm_sq(values[few])])
                for view, safe, few in zip(layout.views(values), largest, candidate, strict=True)
            ]
        ).tolist()
        self.energies.update(
            {key: (row[0], row[1], row[2]) for key, row in zip(layout.keys, rows, strict=True)}
        )

    def state_dict(self) -> dict[str, Any]:
        return {"search": self.search_state(), **saved_fields(self, _STATE)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_keys(state, ("search", *_STATE), repr(self))
        self.load_search_state(state["search"])
        restore_fields(self, _STATE, state)


_STATE = ("sparsifier", "energies", "iteration")


def _first(largest: list[torch.Tensor], layout: Layout, factor: float) -> list[torch.Tensor]:
    """Of each parameter's largest elements, sorted, those that are left at a larger factor."""
    counts = [num_largest(numel, 1 / factor) for numel in layout.numels]
    return [indices[:count] for indices, count in zip(largest, counts, strict=True)]


def _norm_sq(x: torch.Tensor) -> torch.Tensor:
    return x.double().square().sum()
