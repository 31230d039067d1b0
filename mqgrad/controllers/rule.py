"""What the closed-form rules share: a choice of widths, a current one, and their state as plain types."""

import abc
import dataclasses
import math
from typing import Any

from ..checks import check_count
from ..saved_state import check_keys, restore_fields, saved_fields, state_names
from ..statistics.interval import IntervalStatistics
from ..widths import CODED_WIDTHS, Width, check_width, check_widths

_HUGE = 1e100  # sums and products of a few such numbers stay finite


@dataclasses.dataclass(kw_only=True, slots=True)
class Rule(abc.ABC):
    """A controller in closed form, whether it decides one width or one per parameter.

    Its constructor arguments are what ``make_controller`` accepts by name; its fields with ``init=False`` are its
    state, all of it in ``state_dict``.

    Raises:
        ValueError: naming the argument and its value.
    """

    widths: tuple[Width, ...] = CODED_WIDTHS
    """Widths to choose from, increasing."""
    start: Width = 4
    """Width until the first decision; one of ``widths``."""
    interval: int = 10
    """Iterations between two decisions."""
    opening: int | None = None
    """Iterations before the first decision; None is a whole interval."""
    bits: Width = dataclasses.field(init=False, default=0)
    """State: the width decided last for the whole model."""

    def __post_init__(self) -> None:
        self.widths = check_widths(self.widths)
        self.bits = self.check_choice("start", self.start)
        check_count(interval=self.interval)
        if self.opening is not None:
            check_count(opening=self.opening)
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - most rules, not all, need it
        """Check the arguments that a subclass adds, and set its first state."""

    @abc.abstractmethod
    def decide(self, statistics: IntervalStatistics) -> Width | list[Width]:
        """Observe one interval and return the width of the next, in bits, or one per parameter."""

    @property
    def initial_bits(self) -> Width:
        """Width until the first decision."""
        return self.start

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers of the run, as plain types."""
        return {"widths": self.widths, **saved_fields(self, state_names(self))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Raises:
            ValueError: it was saved by another rule, or with other widths.
        """
        names = state_names(self)
        owner = type(self).__name__
        check_keys(state, ["widths", *names], owner)
        if tuple(state["widths"]) != self.widths:
            raise ValueError(
                f"the state of {owner} was saved with widths {tuple(state['widths'])}, "
                f"and its widths are {self.widths}"
            )
        restore_fields(self, names, state)

    def check_choice(self, name: str, bits: Width) -> Width:
        """Return ``bits`` if it is one of ``widths``."""
        try:
            return check_width(bits, self.widths)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


@dataclasses.dataclass(kw_only=True, slots=True)
class WidthRule(Rule):
    """A rule that computes one number from the statistics and takes the nearest of its widths."""

    @abc.abstractmethod
    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """Observe one interval; return the width to go to, a real number, or None to stay.

        An implementation leaves its state as it was when what it reads is not finite.
        """

    def decide(self, statistics: IntervalStatistics) -> Width:
        """Observe one interval and return the width of the next, in bits."""
        wanted = self.wanted_bits(statistics)
        if wanted is not None and math.isfinite(wanted):
            self.bits = nearest(wanted, self.widths)
        return self.bits

    def narrower(self, bits: Width) -> Width:
        """The next width below ``bits``, or ``bits`` if it is the lowest."""
        return self.widths[max(self.widths.index(bits) - 1, 0)]

    def wider(self, bits: Width) -> Width:
        """The next width above ``bits``, or ``bits`` if it is the highest."""
        return self.widths[min(self.widths.index(bits) + 1, len(self.widths) - 1)]


def nearest(value: float, widths: tuple[Width, ...]) -> Width:
    """The width closest to ``value``; of two equally close, the wider."""
    return min(widths, key=lambda width: (abs(width - value), -width))


def usable(*values: float) -> bool:
    """Whether all values are what seconds and squared norms can be: not negative, not NaN, not near overflow."""
    return all(0 <= value < _HUGE for value in values)
