"""Whether and how a run averages at the end of rounds of local iterations."""

import dataclasses

from ..checks import check_count, check_decay
from ..controllers.period_rules import PeriodRule


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RoundSettings:
    """Arguments of :class:`mqgrad.CompressionState`.

    Raises:
        ValueError: a period that is no positive integer, a momentum outside [0, 1); momentum or variance reduction
            without rounds.
    """

    period: int
    slow_momentum: float
    variance_reduced: bool
    period_rule: PeriodRule | None

    def __post_init__(self) -> None:
        check_count(period=self.period)
        check_decay(slow_momentum=self.slow_momentum)
        if not self.are_wanted and (self.slow_momentum > 0 or self.variance_reduced):
            raise ValueError(
                f"slow_momentum={self.slow_momentum!r}, variance_reduced={self.variance_reduced!r} need rounds of "
                "local iterations: give a period above 1, or a period_rule"
            )

    @property
    def are_wanted(self) -> bool:
        """Whether ranks step alone, and average what parameters have moved."""
        return self.period > 1 or self.period_rule is not None

    @property
    def text(self) -> str:
        """What all ranks must have alike, and saved states are told by."""
        return (
            f"period={int(self.period)}, slow_momentum={float(self.slow_momentum)}, "
            f"variance_reduced={self.variance_reduced}, period_rule={type(self.period_rule).__name__}"
        )
