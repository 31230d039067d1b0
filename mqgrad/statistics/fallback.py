"""To 32 bits where coding saves no time."""

import math
from collections.abc import Sequence

from ..saved_state import SavesFields
from ..widths import UNCODED, Width
from .bandit import Block, TwoArmedBandit
from .interval import IntervalStatistics
from .step_times import StepTimes
from .wide_trial import TRIED, WideTrial

_DEVIATION = 0.15
"""Of ln(seconds) of an iteration, of which an interval has the mean only."""
_MOST_EXPECTED = 1.1
"""Of the seconds at the width decided, at 32 bits: expectations are uncertain by as much."""


class Fallback(SavesFields):
    """Sends gradients as they are where that takes no longer than the width that was decided.

    At 32 bits no progress is lost to noise. So a width that saves no time is for nothing, as on a link so fast that
    coding takes longer than the bytes that it saves; a policy that has learned where links are slow need not know it.

    1. Now and then an interval at 8 bits tells what bytes cost (:class:`.WideTrial`).
    2. After an interval at 8 bits or more, 32 bits are tried if an iteration there is expected to last at most a
       tenth longer than one at the width decided. (From fewer bits that is a long extrapolation.)
    3. Once they have been, and while that is expected, measured seconds of 32 bits and of what was decided tell: next
       is what may well be the faster of the two (:class:`.TwoArmedBandit`). So what has long not been used is tried
       again.
    4. Where seconds have changed, what was measured is forgotten, and the next trial comes soon.
    """

    state_fields = ("_trial", "_measured", "_decided")
    state_owner = "the fallback to 32 bits"

    def __init__(self) -> None:
        self._trial = WideTrial()
        self._measured = TwoArmedBandit()
        self._decided: Width = 0  # last, by whom this is the fallback of

    def width(
        self, decided: Width, statistics: IntervalStatistics, times: StepTimes, widths: Sequence[Width]
    ) -> Width:
        """Of the next interval. To be asked at every decision.

        Args:
            decided: by whom this is the fallback of.
            statistics: of the last interval.
            times: what has been learned, that interval included.
            widths: to choose from. Without 32 bits there is nothing to fall back to, and without 8 no trial.
        """
        if UNCODED not in widths:
            return decided
        self._measure(statistics)
        self._decided = decided
        tried = self._trial.width(statistics, times, widths)
        if tried is not None:
            return max(tried, decided)
        return UNCODED if self._is_as_fast(decided, statistics, times) else decided

    def _measure(self, statistics: IntervalStatistics) -> None:
        """Of an interval at 32 bits, or at what was decided: not of a trial, nor of the opening."""
        seconds, count = statistics.step_seconds / statistics.period, len(statistics.losses)
        is_known = count > 0 and 0 < seconds < math.inf
        if not is_known or not self._decided or statistics.mean_bits not in (UNCODED, self._decided):
            return
        block = Block(count, count * math.log(seconds), (count - 1) * _DEVIATION**2)
        if not self._measured.learn(UNCODED, int(statistics.mean_bits == UNCODED), block):
            self._trial.expect_change()

    def _is_as_fast(self, decided: Width, statistics: IntervalStatistics, times: StepTimes) -> bool:
        if not 0 < times.seconds(UNCODED) <= _MOST_EXPECTED * times.seconds(decided):
            return False
        if not self._measured.knows(UNCODED, 1):
            return statistics.mean_bits >= TRIED
        return self._measured.next(UNCODED, int(statistics.mean_bits == UNCODED), 0.0) == 1
