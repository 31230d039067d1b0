"""A two-armed bandit: which of two alternatives gets a run further in a second, learned by trying both."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..saved_state import check_keys
from ..widths import Width

_MEMORY, _FORGOTTEN = 300.0, 0.1
"""Iterations: 1/e of what has been measured counts after as many more, and of a tenth of one nothing."""
_FEWEST = 3
"""Iterations that are taken in: of two nobody knows which one is unusual."""
_OPTIMISM = 2.0
"""Standard errors."""
_SURPRISE, _NO_SURPRISE = 4.0, 0.2
"""Standard errors, and ln(seconds) beside them, beyond which seconds have changed."""
_FIRST_DEVIATION, _LEAST_DEVIATION, _FIRST_COUNT = 0.15, 0.01, 4.0
"""Of ln(seconds) of an iteration: before any are known, the least, and the iterations that the first counts as."""
_OUTLIER = 0.3
"""From the median of ln(seconds): what is further off counts as so far."""


class Block(NamedTuple):
    """ln(seconds) of some iterations: how many, their sum and the sum of their squared deviations from the mean."""

    iterations: float
    sum: float
    squares: float

    @classmethod
    def of(cls, logs: Sequence[float]) -> "Block":
        """Of iterations of one rank, in which a pause counts as little more than a slow iteration; at least three."""
        if len(logs) < _FEWEST:
            return cls(0.0, 0.0, 0.0)
        middle = statistics.median_low(logs)  # pauses make iterations longer, never shorter
        held = [min(max(log, middle - _OUTLIER), middle + _OUTLIER) for log in logs]
        mean = math.fsum(held) / len(held)
        return cls(float(len(held)), math.fsum(held), math.fsum((log - mean) ** 2 for log in held))


@dataclasses.dataclass(kw_only=True, slots=True)
class _Arm:
    """ln(seconds of an iteration) by one arm, at one width."""

    count: float = 0.0
    """Iterations, discounted."""
    mean: float = 0.0


class TwoArmedBandit:
    """Two arms at each width, with discounted upper confidence bounds (Garivier & Moulines, ALT 2011).

    1. Iterations of one arm discount what is known of both at their width, and are taken in.
    2. But if they are further from what was known than four standard errors and a fifth, something has changed: what
       was known of both is forgotten, and these iterations with it.
    3. Next is the arm with the least that ln(seconds) may well be: the mean less two standard errors. One about which
       nothing is known comes first, of two such the one in use.

    What it computes of numbers that are equal on all ranks is so, too: sums, products and roots round alike.
    """

    def __init__(self) -> None:
        self._arms: dict[Width, tuple[_Arm, _Arm]] = {}
        self._squares, self._degrees = _FIRST_COUNT * _FIRST_DEVIATION**2, _FIRST_COUNT

    def learn(self, bits: Width, arm: int, block: Block) -> bool:
        """Steps 1 and 2, of arm 0 or 1 at a width; whether it was as expected."""
        if block.iterations == 0:
            return False
        used, mean = self._at(bits)[arm], block.sum / block.iterations
        if self._is_surprise(used, block.iterations, mean):
            del self._arms[bits]  # the block with it: it may be from before and after the change
            return False
        kept = _MEMORY / (_MEMORY + block.iterations)
        for each in self._at(bits):
            each.count = kept * each.count if each.count >= _FORGOTTEN else 0.0
        used.count += block.iterations
        used.mean += (mean - used.mean) * block.iterations / used.count
        self._squares = kept * (self._squares + block.squares)
        self._degrees = kept * (self._degrees + max(block.iterations - 1, 0.0))
        return True

    def knows(self, bits: Width, arm: int) -> bool:
        """Whether anything counts that has been taken in of an arm at a width."""
        return self._at(bits)[arm].count > 0

    def next(self, bits: Width, arm: int, handicap: float) -> int:
        """Step 3, at a width: 0 or 1.

        Args:
            bits: of the next iterations.
            arm: in use.
            handicap: added to ln(seconds) of arm 0.
        """
        first, second = self._at(bits)
        if not first.count or not second.count:
            return arm if not (first.count or second.count) else int(first.count > 0)
        return int(self._least(second) < self._least(first) + handicap)

    def _at(self, bits: Width) -> tuple[_Arm, _Arm]:
        return self._arms.setdefault(bits, (_Arm(), _Arm()))

    def _is_surprise(self, used: _Arm, count: float, mean: float) -> bool:
        if used.count == 0:
            return False
        return abs(mean - used.mean) > _SURPRISE * self._error(used.count, count) + _NO_SURPRISE

    def _least(self, arm: _Arm) -> float:
        return arm.mean - _OPTIMISM * self._error(arm.count)

    def _error(self, *counts: float) -> float:
        """Standard error of the mean of so many iterations, or of the difference between two such means."""
        variance = max(self._squares / self._degrees, _LEAST_DEVIATION**2)
        return math.sqrt(variance * sum(1 / count for count in counts))

    def state_dict(self) -> dict[str, Any]:
        """State as plain types."""
        arms = [(bits, *((arm.count, arm.mean) for arm in pair)) for bits, pair in self._arms.items()]
        return {"arms": arms, "noise": (self._squares, self._degrees)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, self.state_dict(), "the two-armed bandit")
        self._arms = {}
        for bits, *pair in state["arms"]:
            first, second = (_Arm(count=float(count), mean=float(mean)) for count, mean in pair)
            self._arms[bits] = first, second
        self._squares, self._degrees = map(float, state["noise"])
