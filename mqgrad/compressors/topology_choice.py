"""Shards or an all-gather: whichever makes more progress per second in the run at hand, as it is measured there."""

import dataclasses
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..saved_state import check_keys
from ..statistics.efficiency import log_efficiency
from ..statistics.interval import IntervalStatistics
from ..widths import Width
from .base import Step

MOST_RANKS = 8
"""Among more an all-gather is not tried: with W ranks it sends W/2 times the bytes of shards."""

_FIRST_BLOCK, _LONGEST_BLOCK = 2, 64
"""Iterations counted of a block: at first, and where nothing has changed for long."""
_START = 3
"""First iterations of a run, which take longer than the rest."""
_MEMORY = 500.0
"""Iterations: 1/e of what has been measured counts after as many more."""
_OPTIMISM = 2.0
"""Standard errors."""
_SURPRISE = 4.0
"""Standard errors, beyond which seconds have changed."""
_FIRST_DEVIATION, _FIRST_COUNT = 0.15, 4.0
"""Of ln(seconds) of an iteration, before any are known, and the iterations that this counts as."""


class _Block(NamedTuple):
    """ln(seconds) of the iterations that were counted, mean over ranks: how many, their mean, and the sum of squared
    deviations from it."""

    iterations: float
    mean: float
    squares: float


@dataclasses.dataclass(kw_only=True, slots=True)
class _Way:
    """ln(seconds of an iteration) one way, at one width."""

    count: float = 0.0
    """Iterations, discounted."""
    mean: float = 0.0

    def shift(self, change: float) -> None:
        """Be as much faster or slower, and less certain."""
        self.count, self.mean = min(self.count, 0.5), self.mean + change

    def add(self, block: _Block) -> None:
        self.count += block.iterations
        self.mean += (block.mean - self.mean) * block.iterations / self.count


@dataclasses.dataclass(kw_only=True, slots=True)
class TopologyChoice:
    """Two arms of a bandit, with discounted upper confidence bounds (Garivier & Moulines, ALT 2011).

    An iteration is worth its progress (:mod:`mqgrad.statistics.efficiency`) per second. In a block of iterations:

    1. Each rank notes ln(seconds) of every iteration but the first, which the block before it has begun.
    2. After the block, or where the width changes, ranks tell one another how many they are, their sum and that of
       their squares: 32 bytes each, before the first bucket of an iteration.
    3. Both ways at this width are discounted by these iterations, and the way in use takes them in. But if they are
       further from what was known than four standard errors, the link has changed: what was known of both then
       counts as half an iteration, as much faster or slower.
    4. The way with the highest bound comes next: mean and two standard errors of ln(progress per second). A block
       lasts twice as long as the one before it if the way is the same, up to 64 iterations; else it begins at two.

    A width that comes for the first time begins with what the nearest one has shown, if that is both ways: by how
    much one is faster, which counts as half an iteration. That shards code a mean again costs progress, by the
    figures of the last interval as soon as those are known: rank 0's. All else is exchanged, and what follows is
    arithmetic that rounds alike on all machines: all ranks choose the same.
    """

    gathers: bool = False
    """State: whether this iteration is an all-gather."""
    ways: dict[Width, tuple[_Way, _Way]] = dataclasses.field(default_factory=dict)
    """State: shards and all-gather, by width."""
    squares: float = _FIRST_COUNT * _FIRST_DEVIATION**2
    """State: of deviations from the mean of a block, as the next."""
    degrees: float = _FIRST_COUNT
    _bits: Width = 0
    _is_new: bool = False
    """Whether all that is known of this width is what another one has shown."""
    _begun: int = 0
    """Iterations."""
    _gathered: int = 0
    """Of these, all-gathers."""
    _length: int = _FIRST_BLOCK
    _passed: int = 0
    """Iterations of the block that have begun."""
    _logs: list[float] = dataclasses.field(default_factory=list)
    _iteration: int = -1
    _next_iteration: int = -1

    def begin_iteration(self, step: Step) -> None:
        """At every bucket; the first one of an iteration counts. A collective, where a block has ended."""
        if step.iteration == self._iteration:
            return
        follows = step.iteration == self._next_iteration
        self._iteration, self._next_iteration = step.iteration, step.iteration + step.period
        self._begun += 1
        if self._passed > 1 and self._begun > _START + 1 and follows and step.seconds > 0:
            self._logs.append(math.log(step.seconds))
        if self._passed > self._length or step.bits != self._bits:
            self._end_block(step)
        self._passed += 1
        self._gathered += self.gathers

    @property
    def gathered_share(self) -> float:
        """Of the iterations since the run began or was loaded."""
        return self._gathered / max(self._begun, 1)

    def _end_block(self, step: Step) -> None:
        block, lost = self._exchange(step)
        is_settled = self._learn(block) and step.bits == self._bits
        self._bits, self._logs, self._passed = step.bits, [], 0
        before, (shards, gather) = self.gathers, self._ways()
        self.gathers = self._is_better(gather, shards, lost)
        is_settled = is_settled and self.gathers == before
        self._length = min(2 * self._length, _LONGEST_BLOCK) if is_settled else _FIRST_BLOCK

    def _exchange(self, step: Step) -> tuple[_Block, float]:
        """Step 2; and what shards lose, as rank 0 sees it."""
        logs, lost = self._logs, lost_in_shards(step.statistics, step.bits)
        row = [float(len(logs)), math.fsum(logs), math.fsum(x * x for x in logs), lost]
        sent = torch.tensor(row, dtype=torch.float64, device=step.transport.device)
        rows = step.transport.all_gather(sent).tolist()
        count, total, squares, _ = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
        mean = total / count if count > 0 else 0.0
        return _Block(count, mean, max(squares - count * mean * mean, 0.0)), rows[0][3]

    def _learn(self, block: _Block) -> bool:
        """Step 3; whether there was something to learn, and no surprise."""
        if block.iterations == 0:
            return False
        ways = self.ways[self._bits]
        used = ways[self.gathers]
        if self._is_new or self._is_surprise(used, block):
            change, self._is_new = block.mean - used.mean, False
            for way in ways:
                way.shift(change)
            return False
        kept = _MEMORY / (_MEMORY + block.iterations)
        for way in ways:
            way.count *= kept
        used.add(block)
        self.squares = kept * (self.squares + block.squares)
        self.degrees = kept * (self.degrees + block.iterations)
        return True

    def _is_surprise(self, used: _Way, block: _Block) -> bool:
        if used.count == 0:
            return False
        expected = self._error(1 / (1 / used.count + 1 / block.iterations))
        return abs(block.mean - used.mean) > _SURPRISE * expected

    def _ways(self) -> tuple[_Way, _Way]:
        """Of the width in use."""
        bits = self._bits
        if bits not in self.ways:
            known = [other for other, pair in self.ways.items() if other and all(way.count for way in pair)]
            self._is_new = bool(known and bits)  # 0 stands for several widths at once
            nearest = (
                min(known, key=lambda other: max(other, bits) / min(other, bits)) if self._is_new else None
            )
            shards, gather = (_Way(), _Way()) if nearest is None else map(replace, self.ways[nearest])
            self.ways[bits] = shards, gather
        return self.ways[bits]

    def _is_better(self, gather: _Way, shards: _Way, lost: float) -> bool:
        """Step 4. A way that has never been tried comes first; of two such, shards."""
        if not gather.count or not shards.count:
            return shards.count > 0
        return self._bound(gather) < self._bound(shards) + lost

    def _bound(self, way: _Way) -> float:
        """The least that ln(seconds) may well be."""
        return way.mean - _OPTIMISM * self._error(way.count)

    def _error(self, count: float) -> float:
        return math.sqrt(self.squares / self.degrees / count)

    def state_dict(self) -> dict[str, Any]:
        """What has been learned, as plain types; of the block under way nothing."""
        ways = {bits: [(way.count, way.mean) for way in pair] for bits, pair in self.ways.items()}
        return {"gathers": self.gathers, "ways": ways, "squares": self.squares, "degrees": self.degrees}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, self.state_dict(), "the choice of a topology")
        self.gathers, self.squares, self.degrees = state["gathers"], state["squares"], state["degrees"]
        self.ways = {}
        for bits, pair in state["ways"].items():
            shards, gather = (_Way(count=float(count), mean=float(mean)) for count, mean in pair)
            self.ways[bits] = shards, gather
        self._bits, self._length, self._passed, self._logs = 0, _FIRST_BLOCK, 0, []


def lost_in_shards(statistics: IntervalStatistics | None, bits: Width) -> float:
    """ln of the progress of an iteration at ``bits`` gathered, relative to shards; 0 where that is not known.

    Noise that feedback repays counts as far as the optimizer's steps are normalized, and not otherwise: with momentum
    SGD the two make the same progress in an iteration (docs/compressors.md).
    """
    if statistics is None or not bits or statistics.mean_norm_sq <= 0:
        return 0.0
    noises = [
        replace(statistics, coding=replace(statistics.coding, recoded=each)).quantization_noise(bits)
        for each in (False, True)
    ]
    relative = np.array(noises) / statistics.mean_norm_sq
    unpaid = 0.0 if statistics.coding.feedback else 1.0
    gathered, shards = log_efficiency(relative, np.array(statistics.update_exponent), np.array(unpaid))
    return float(gathered - shards) if math.isfinite(gathered - shards) else 0.0
