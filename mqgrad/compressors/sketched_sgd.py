"""Sketched SGD: count sketches are summed by all-reduce, and the heavy hitters fetched in a second round."""

import dataclasses
from collections.abc import Set

import torch

from ..checks import check_count, check_decay, check_share
from ..collectives.transport import Transport
from ..layout import Layout
from ..seeding import stream_seed
from ..stopwatch import add_seconds
from .base import BucketWork, CompressorDefaults, Step
from .parameter_memory import ParameterMemory
from .sparsified import num_largest


@dataclasses.dataclass(kw_only=True)
class SketchedSGD(CompressorDefaults):
    """Sketched SGD (Ivkin, Rothchild, Ullah, Braverman, Stoica and Arora, NeurIPS 2019), with one sketch a parameter.

    Momentum is applied here, before the sketch: give the optimizer none (with one rank there is none at all). The
    hash tables are kept in memory: 8 bytes for each row and element.

    Raises:
        ValueError: for a number outside its range.
    """

    state_fields = ("velocity", "accumulated")
    ratio: float = dataclasses.field(default=0.01, kw_only=False)
    """Share of each parameter's elements that is applied in a step: the k heavy hitters."""
    columns: int = 10
    """Of each row of the sketch, in units of k. 10 in CommEfficient's ``train_dist.py``: 500,000 for k = 50,000."""
    rows: int = 5
    """Of the sketch: an estimate is the median over them."""
    candidates: int = 4
    """P: elements whose exact sums are fetched in the second round, in units of k."""
    min_numel: int = 1000
    """Smaller parameters are averaged in fp32, with ordinary momentum."""
    momentum: float = 0.9
    velocity: ParameterMemory = dataclasses.field(init=False, repr=False, default_factory=ParameterMemory)
    """State: u, the momentum of what has not been applied."""
    accumulated: ParameterMemory = dataclasses.field(init=False, repr=False, default_factory=ParameterMemory)
    """State: v, the sum of u since it was applied last."""
    hashes: dict[int, "CountSketch"] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """By parameter key; a function of the seed, so no part of the state."""

    def __post_init__(self) -> None:
        check_share(ratio=self.ratio)
        if self.rows < 1 or self.rows % 2 == 0:
            raise ValueError(f"rows {self.rows!r} must be odd, so that there is a median")
        check_count(columns=self.columns, candidates=self.candidates)
        size = self.rows * self.columns * self.ratio
        if size > 1 + 1e-9:
            raise ValueError(
                f"a sketch would have {size:.3g} times the elements of its parameter, rows * columns * ratio = "
                f"{self.rows} * {self.columns} * {self.ratio}; lower one of them, so that it is at most 1"
            )
        check_count(0, min_numel=self.min_numel)
        check_decay(momentum=self.momentum)

    @property
    def applies_momentum(self) -> bool:
        return self.momentum > 0

    @property
    def num_residuals(self) -> int:
        return len(self.accumulated)

    def forget(self, keys: Set[int]) -> None:
        super().forget(keys)
        for key in keys:
            self.hashes.pop(key, None)

    def average_(self, work: BucketWork, step: Step) -> None:
        """Average through sketches.

        1. u ← m·u + g; v ← v + u.
        2. Sketch v; sum the sketches over ranks, and with them u of the parameters that are not sketched.
        3. Estimate every element; take the P·k largest estimates of each parameter as candidates.
        4. Sum the candidates' exact values over ranks; the k largest of them are applied.
        5. Zero u and v where they were; where anything is not finite, both stay as they were and the mean is NaN.
        """
        layout, transport = work.layout, step.transport
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            velocity, accumulated = self.velocity.flat(layout), self.accumulated.flat(layout)
            u = self.momentum * velocity + layout.pack(work.gradients)
            v = accumulated + u
            views = dict(zip(layout.keys, layout.views(v), strict=True))
            sketches = {
                key: self._sketch_of(key, x, step.seed) for key, x in views.items() if self._is_large(x)
            }
            # 2.
            small = torch.cat([x for x in layout.views(u) if not self._is_large(x)] or [u[:0]])
            tables = [sketch.table(views[key]).flatten() for key, sketch in sketches.items()]
        total = _all_reduce(torch.cat([*tables, small]), transport)
        # 3.
        with add_seconds(step.costs, "decode_seconds"):
            candidates = self._candidates(total, layout, sketches)
        # 4.
        exact = _all_reduce(v[candidates], transport)
        with add_seconds(step.costs, "decode_seconds"):
            mean, applied = self._apply(total, exact, candidates, layout, sketches)
            mean.div_(transport.world_size)
            layout.unpack(mean, work.gradients)
            # 5.
            if all(bool(x.isfinite().all()) for x in (total, exact, work.buffer)):
                u[applied] = 0.0
                v[applied] = 0.0
                velocity.copy_(u)
                for view in layout.views(v):
                    if not self._is_large(view):
                        view.zero_()
                accumulated.copy_(v)
            else:
                work.buffer.fill_(torch.nan)

    def _is_large(self, x: torch.Tensor) -> bool:
        sketch = self.rows * self.columns * num_largest(x.numel(), self.ratio)
        return x.numel() >= max(self.min_numel, 1) and sketch <= x.numel()

    def _sketch_of(self, key: int, x: torch.Tensor, seed: int) -> "CountSketch":
        if key not in self.hashes or self.hashes[key].device != x.device:
            columns = self.columns * num_largest(x.numel(), self.ratio)
            self.hashes[key] = CountSketch(
                x.numel(), self.rows, columns, stream_seed(seed, -1, key), x.device
            )
        return self.hashes[key]

    def _candidates(
        self, total: torch.Tensor, layout: Layout, sketches: dict[int, "CountSketch"]
    ) -> torch.Tensor:
        """int64 [P·k over the sketched parameters]: positions in the flat vector, parameter by parameter."""
        found, at = [total.new_empty(0, dtype=torch.int64)], 0
        offsets = dict(zip(layout.keys, layout.offsets, strict=True))
        for key, sketch in sketches.items():
            table = total[at : at + sketch.numel_table].view(self.rows, -1)
            at += sketch.numel_table
            found.append(
                offsets[key] + sketch.estimate(table).abs().topk(self._num_candidates(sketch)).indices
            )
        return torch.cat(found)

    def _num_candidates(self, sketch: "CountSketch") -> int:
        return min(self.candidates * num_largest(sketch.numel, self.ratio), sketch.numel)

    def _apply(
        self,
        total: torch.Tensor,
        exact: torch.Tensor,
        candidates: torch.Tensor,
        layout: Layout,
        sketches: dict[int, "CountSketch"],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum [N] that is applied, and the positions of the heavy hitters in it."""
        flat = torch.zeros(layout.numel, dtype=torch.float32, device=total.device)
        applied, at = [candidates[:0]], 0
        for sketch in sketches.values():
            part = slice(at, at + self._num_candidates(sketch))
            at = part.stop
            best = exact[part].abs().topk(num_largest(sketch.numel, self.ratio)).indices
            applied.append(candidates[part][best])
            flat[applied[-1]] = exact[part][best]
        at = sum(sketch.numel_table for sketch in sketches.values())
        for view in layout.views(flat):
            if not self._is_large(view):
                view.copy_(total[at : at + view.numel()])
                at += view.numel()
        return flat, torch.cat(applied)


class CountSketch:
    """Count sketch (Charikar, Chen and Farach-Colton, ICALP 2002) of vectors [numel]: linear, to [rows, columns].

    In each row an element is added, with a random sign, to a random column; its estimate is the median over rows.
    """

    def __init__(self, numel: int, rows: int, columns: int, seed: int, device: torch.device) -> None:
        self.numel = numel
        self.numel_table = rows * columns
        self.device = device
        self._shape = (rows, columns)
        generator = torch.Generator().manual_seed(seed)
        # Column in the upper bits, sign in the lowest.
        self._hashes = torch.randint(2 * columns, (rows, numel), generator=generator).to(device)

    def table(self, x: torch.Tensor) -> torch.Tensor:
        """Sketch of ``x`` [numel]: float32 [rows, columns]."""
        return torch.stack(
            [
                torch.zeros(self._shape[1], dtype=x.dtype, device=x.device).index_add_(
                    0, hashes >> 1, x * _signs(hashes)
                )
                for hashes in self._hashes
            ]
        )

    def estimate(self, table: torch.Tensor) -> torch.Tensor:
        """Estimate of the vector [numel] from its sketch."""
        rows = [row[hashes >> 1] * _signs(hashes) for row, hashes in zip(table, self._hashes, strict=True)]
        return _median(rows)


def _median(rows: list[torch.Tensor]) -> torch.Tensor:
    """Median over an odd number of tensors, element by element.

    By an odd-even transposition sort, whose work grows with the square of their number; for the few that a sketch has
    many times as fast as ``torch.median``.
    """
    rows = list(rows)
    for start in range(len(rows)):
        for i in range(start % 2, len(rows) - 1, 2):
            rows[i], rows[i + 1] = torch.minimum(rows[i], rows[i + 1]), torch.maximum(rows[i], rows[i + 1])
    return rows[len(rows) // 2]


def _signs(hashes: torch.Tensor) -> torch.Tensor:
    return (2 * (hashes & 1) - 1).float()


def _all_reduce(x: torch.Tensor, transport: Transport) -> torch.Tensor:
    if x.numel():
        transport.all_reduce_(x)
    return x
