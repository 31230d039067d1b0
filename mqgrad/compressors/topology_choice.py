"""Shards or an all-gather: whichever makes more progress per second in the run at hand, as it is measured there."""

import dataclasses
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..saved_state import SavesFields
from ..statistics.bandit import Block, TwoArmedBandit
from ..statistics.efficiency import log_efficiency
from ..statistics.interval import IntervalStatistics
from ..widths import Width
from .base import Step

MOST_RANKS = 8
"""Among more an all-gather is not tried: with W ranks it sends W/2 times the bytes of shards."""

_FIRST_BLOCK, _LONGEST_BLOCK = 3, 64
"""Iterations measured in a block: at first, and where nothing has changed for long."""
_START = 3
"""First iterations of a process, which take longer than the rest."""


@dataclasses.dataclass(kw_only=True)
class TopologyChoice(SavesFields):
    """Takes iterations in blocks, and learns after each which topology the next one has.

    1. Each rank notes ln(seconds) of every iteration of a block but the first, which the block before has begun, and
       but a process's first three. Of several backwards for which a script reports one loss, it notes the sum.
    2. After the block, or where the width changes, ranks tell one another how many they are, their sum and that of
       their squared deviations: 32 bytes each, before the first bucket of an iteration.
    3. The topology of the next block is that of more progress per second, or one about which too little is known
       (:class:`mqgrad.statistics.bandit.TwoArmedBandit`). What coding the mean again costs in progress counts by
       the figures of the last interval, as soon as those are known: rank 0's.
    4. A block lasts twice as long as the one before it, up to 64 iterations, if topology and seconds are the same
       or nothing was noted; else it begins at three.

    When a block ends depends on what is equal on all ranks alone, whatever their scripts report.
    """

    state_fields = ("gathers", "known", "bits", "length", "passed")
    """All but what this rank has noted in the block under way."""
    state_owner = "the choice of a topology"
    gathers: bool = False
    """State: whether this iteration is an all-gather."""
    known: TwoArmedBandit = dataclasses.field(default_factory=TwoArmedBandit)
    """State: of shards and of the all-gather."""
    bits: Width = 0
    """State: of the block; 0 where parameters have widths of their own, and before the first."""
    length: int = _FIRST_BLOCK
    """State: iterations of the block, less the first."""
    passed: int = -_START
    """State: of those, and the first, how many are over; below 0 at the start of a run."""
    _begun: int = 0
    """Iterations since the run began or was loaded."""
    _gathered: int = 0
    """Of these, all-gathers."""
    _in_interval: tuple[int, int] = (0, 0)
    """The two, of the interval under way."""
    _logs: list[float] = dataclasses.field(default_factory=list)
    _laps: int = -1
    """``Step.laps`` when seconds were looked at last."""
    _is_first: bool = True
    """Whether none were known yet in this block."""
    _iteration: int = -1
    _period: int = 1

    def figures(self) -> dict[str, float]:
        """For the run's record."""
        return {"gathered_share": self._gathered / self._begun} if self._begun else {}

    @property
    def interval_share(self) -> float:
        """Share of all-gathers in the interval under way."""
        begun, gathered = self._in_interval
        return gathered / max(begun, 1)

    def begin_iteration(self, step: Step) -> None:
        """At every bucket; the first one of an iteration counts. A collective, where a block has ended."""
        if step.iteration == self._iteration:
            return
        self._note_seconds(step)
        self._iteration, self._period = step.iteration, step.period
        self.passed += 1
        if self.passed > self.length or step.bits != self.bits:
            self._end_block(step)
        self._begun += 1
        self._gathered += self.gathers
        begun, gathered = (0, 0) if step.number == 1 else self._in_interval
        self._in_interval = begun + 1, gathered + self.gathers

    def _note_seconds(self, step: Step) -> None:
        """Step 1, in the iteration after, unless there have been others between the two."""
        if step.laps == self._laps:
            return
        follows = step.iteration == self._iteration + self._period
        if follows and not self._is_first and self._begun > _START and step.seconds > 0:
            self._logs.append(math.log(step.seconds / self._period))
        self._laps, self._is_first = step.laps, not follows

    def _end_block(self, step: Step) -> None:
        """Steps 2 to 4."""
        block, gain = self._exchange(step)
        as_expected = self.known.learn(self.bits, self.gathers, block)
        before, self.gathers = self.gathers, bool(self.known.next(step.bits, self.gathers, gain))
        goes_on = step.bits == self.bits and self.gathers == before and (as_expected or not block.iterations)
        self.length = min(2 * self.length, _LONGEST_BLOCK) if goes_on else _FIRST_BLOCK
        self.bits, self.passed, self._logs, self._is_first = step.bits, min(self.passed, 0), [], True

    def _exchange(self, step: Step) -> tuple[Block, float]:
        """What the ranks have noted, means over them; and what gathering gains in progress, as rank 0 sees it."""
        row = [*Block.of(self._logs), gain_of_gathering(step.statistics, step.bits)]
        sent = torch.tensor(row, dtype=torch.float64, device=step.transport.device)
        rows = step.transport.all_gather(sent).tolist()
        count, total, squares, _ = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
        return Block(count, total, squares), rows[0][-1]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._logs, self._is_first, self._laps, self._iteration = [], True, -1, -1
        self._begun, self._gathered, self._in_interval = 0, 0, (0, 0)


def gain_of_gathering(statistics: IntervalStatistics | None, bits: Width) -> float:
    """ln of the progress of an iteration at ``bits`` gathered, relative to shards; 0 where that is not known.

    Noise that feedback repays counts as far as the optimizer's steps are normalized. As far as they are linear, as
    with momentum SGD, the two make the same progress in an iteration (docs/compressors.md), and the small part that
    :data:`mqgrad.statistics.efficiency.UNPAID` counts between widths would favour all-gathers.
    """
    if statistics is None or not bits or not 0 < statistics.mean_norm_sq < math.inf:
        return 0.0
    noises = [
        replace(statistics, coding=replace(statistics.coding, recoded=recoded)).noise_of_mean(bits)
        for recoded in (False, True)
    ]
    if not math.isfinite(sum(noises)):
        return 0.0
    relative = np.array(noises) / statistics.mean_norm_sq
    unpaid = 0.0 if statistics.coding.feedback else 1.0
    gathered, shards = log_efficiency(relative, np.array(statistics.update_exponent), np.array(unpaid))
    return float(gathered - shards) if math.isfinite(gathered - shards) else 0.0
