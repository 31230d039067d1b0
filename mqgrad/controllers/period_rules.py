"""Rules that choose how many iterations a round of local iterations has, while the run goes on."""

import dataclasses
import math
from typing import Any, Protocol, runtime_checkable

from ..checks import check_count, check_positive
from ..saved_state import SavesFields
from ..spec import build_named
from ..statistics.interval import IntervalStatistics


@runtime_checkable
class PeriodRule(Protocol):
    """Chooses the period, beside a controller that chooses the width and where that decides, or every ten rounds.

    As with controllers, every rank holds one and feeds it the same statistics, rank 0's answer is used, and all its
    state is in ``state_dict``.
    """

    def decide(self, statistics: IntervalStatistics) -> int:
        """Observe an interval, in rounds of ``statistics.period``; return the period of the next, at least 1."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State as plain types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        ...


@dataclasses.dataclass(slots=True)
class AdaComm(SavesFields):
    """Shorter rounds as the loss falls (AdaComm: Wang and Joshi, MLSys 2019). Every so many seconds:

        τ_l = ⌈√(F_l / F_0) · τ_0⌉, or ⌈γ·τ_{l−1}⌉ where that is not less than τ_{l−1}

    F_l is the mean training loss since the last change, F_0 that of the first round, as the initial parameters' own
    is not measured apart; τ_0 is the period that the run begins with. In the paper the learning rate may change, too,
    which is not known here. It never lengthens rounds: begin with the longest.

    Raises:
        ValueError: seconds that are not positive; γ is not between 0 and 1.
    """

    state_fields = ("first_loss", "first_period", "elapsed", "loss_iterations", "iterations")
    state_owner = "AdaComm"
    seconds: float = 60.0
    """Of training between two changes; decisions of the controller that come earlier leave the period as it is."""
    decay: float = 0.5
    """γ."""
    first_loss: float | None = dataclasses.field(init=False, default=None)
    """State: F_0."""
    first_period: int = dataclasses.field(init=False, default=0)
    """State: τ_0."""
    elapsed: float = dataclasses.field(init=False, default=0.0)
    """State: seconds since the last change."""
    loss_iterations: float = dataclasses.field(init=False, default=0.0)
    """State: Σ of the loss over these iterations."""
    iterations: int = dataclasses.field(init=False, default=0)
    """State: their number."""

    def __post_init__(self) -> None:
        check_positive(seconds=self.seconds)
        if not 0 < self.decay < 1:
            raise ValueError(f"decay {self.decay!r} must be between 0 and 1")

    def decide(self, statistics: IntervalStatistics) -> int:
        """The next period; the current one where a loss is not positive and finite, or it is too early."""
        if not all(0 < loss < math.inf for loss in statistics.losses) or not statistics.losses:
            return statistics.period
        if self.first_loss is None:
            self.first_loss, self.first_period = statistics.losses[0], statistics.period
        self.elapsed += statistics.seconds
        iterations = statistics.period * len(statistics.losses)
        self.iterations += iterations
        self.loss_iterations += statistics.loss * iterations
        return self._next(statistics.period) if self.elapsed >= self.seconds else statistics.period

    def _next(self, period: int) -> int:
        assert self.first_loss is not None
        loss = self.loss_iterations / self.iterations
        self.elapsed, self.loss_iterations, self.iterations = 0.0, 0.0, 0
        wanted = math.ceil(math.sqrt(loss / self.first_loss) * self.first_period)
        # Rounded up alone, a γ above ½ would stay at a few iterations.
        return wanted if wanted < period else max(min(math.ceil(self.decay * period), period - 1), 1)


@dataclasses.dataclass(slots=True)
class DelayRatio(SavesFields):
    """Longer rounds where an average takes long beside an iteration.

        τ = κ·√(D / Y)

    D are the seconds that a round waits for its average, on the rank that waits the least, so that other ranks' being
    slower counts little; Y those that one of its iterations computes. The bound on the error after a given time of
    Wang and Joshi (MLSys 2019), A·(Y + D/τ) + B·(τ − 1) but for what does not depend on τ, is least at √(A·D/B). So
    κ = √(A·Y/B). That depends on the model, the loss, the learning rate, the noise of the gradients and of the codes,
    and the length of the run, but not on the link. This project's own rule: D and Y are measured, κ is a guess.

    D and Y are those of the last interval. The period at most doubles or halves in one decision, since a few rounds
    are measured badly.

    Raises:
        ValueError: κ is not positive, or ``largest`` no positive integer.
    """

    state_owner = "DelayRatio"
    scale: float = 8.0
    """κ: the period at which an average takes as long as an iteration computes."""
    largest: int = 32
    """The longest period to go to."""

    def __post_init__(self) -> None:
        check_positive(scale=self.scale)
        check_count(largest=self.largest)

    def decide(self, statistics: IntervalStatistics) -> int:
        """The next period; the current one where seconds are not known."""
        period, waited = statistics.period, statistics.waited_seconds
        computed = statistics.compute_seconds / period
        if not (0 < computed < math.inf and 0 <= waited < math.inf):
            return period
        wanted = min(round(self.scale * math.sqrt(waited / computed)), self.largest)
        return min(max(wanted, (period + 1) // 2), 2 * period)


_RULES: dict[str, type[Any]] = {"adacomm": AdaComm, "delay-ratio": DelayRatio}


def make_period_rule(spec: str) -> PeriodRule:
    """Build a rule from its name and arguments: ``adacomm``, ``adacomm:10``, ``delay-ratio:4,largest=16``.

    The arguments are those of the class. In a method's name, which commas divide, there is room for the first one.

    Raises:
        ValueError: for an unknown name or argument, listing the known ones; a wrong value.
    """
    rule: PeriodRule = build_named("period rule", _RULES, spec)
    return rule
