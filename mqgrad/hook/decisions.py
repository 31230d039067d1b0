"""What a run does until the next decision, and who makes it."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ..compatibility import check_compatible
from ..compressors.base import Compressor
from ..controllers.base import Controller, traits_of
from ..controllers.fixed import FixedBits
from ..controllers.period_rules import PeriodRule
from ..failures import described
from ..statistics.interval import IntervalStatistics
from ..widths import UNCODED, Width, Widths, as_width, check_parameter_widths, check_width
from .agreement import Decision

_T = TypeVar("_T")

_TOO_LONG = 2**31
_INTERVAL = 10
"""Iterations, where no controller says, until the caller does."""
_METHODS = ("decide", "state_dict", "load_state_dict")
_MOST_STRETCHED = 10
"""Times as long as a controller says, at most, an interval is."""
_UNCODED_STRETCH = 4
"""Times ``least_seconds``, which it comes to take where 32 bits stay in force."""
_RULE_INTERVAL = 10
"""Rounds between two decisions of a period rule, at most: a fixed width has longer intervals."""


def whole_iterations(what: str, number: Any) -> int:
    """A number of iterations as an int.

    Raises:
        ValueError: it is no whole number, below 1 or beyond what 32 bits hold; ``what`` it is comes first.
    """
    is_real = isinstance(number, numbers.Real)
    if not (is_real and 1 <= number < _TOO_LONG and number == int(number)):
        raise ValueError(
            f"{what} {number!r}: it must be a whole number of iterations, from 1 to {_TOO_LONG - 1}"
        )
    return int(number)


def _named(decider: object) -> str:
    """By its class: a policy's own ``repr`` shows all its weights, and takes longer than to decide."""
    return type(decider).__name__


def _check_deciders(controller: object, period_rule: object) -> None:
    """Raise ``ValueError`` for a rule alone, and ``TypeError`` for what is no controller or no rule."""
    if period_rule is not None and controller is None:
        raise ValueError(f"{period_rule} decides where a controller does: give one, such as FixedBits(4)")
    if isinstance(controller, str):
        raise TypeError(
            f"controller {controller!r} is a name: give mqgrad.make_controller({controller!r}), or of a policy "
            f"mqgrad.load_policy({controller!r}, budget_seconds=…)"
        )
    if isinstance(period_rule, str):
        raise TypeError(f"period_rule {period_rule!r} is a name: give an object, as mqgrad.DelayRatio()")
    _check_whole("controller", controller, ("initial_bits", "interval", *_METHODS), "mqgrad.FixedBits(4)")
    _check_whole("period_rule", period_rule, _METHODS, "mqgrad.DelayRatio()")


def _check_whole(argument: str, part: object, needs: Iterable[str], such_as: str) -> None:
    """By what it has: whoever writes a controller need not inherit anything."""
    lacks = [name for name in needs if not hasattr(part, name)]
    if part is not None and lacks:
        raise TypeError(
            f"{argument} {part!r} lacks {', '.join(lacks)}: give an object that has them, as {such_as}"
        )


def _made(decider: object, decide: Callable[[], _T], rank: int) -> _T:
    """The training thread sees no more of what is raised here than its text."""
    try:
        return decide()
    except Exception as error:
        raise RuntimeError(f"rank {rank}: {_named(decider)} could not decide: {described(error)}") from error


def _number(value: int, what: str) -> int:
    """What can be sent to the other ranks, who check it: :meth:`Decisions.adopt`."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{what} of {value!r} is no number")
    return value


class Decisions:
    """Widths, and how many iterations intervals and rounds have, on one rank.

    Args:
        controller: decides the width and the interval; None leaves them to the caller.
        period_rule: decides the period beside it; None leaves it as it is.
        compressor: has the widths to choose from.
        period: iterations of a round, at first.

    Raises:
        ValueError: a controller and a compressor that do not go together; a period rule without a controller; an
            interval or opening that is no positive integer.
        TypeError: what is no controller, or no rule, such as a name.
    """

    def __init__(
        self,
        controller: Controller | None,
        period_rule: PeriodRule | None,
        compressor: Compressor,
        *,
        period: int,
    ) -> None:
        _check_deciders(controller, period_rule)
        check_compatible(controller, compressor)
        self.controller, self.period_rule, self._compressor = controller, period_rule, compressor
        self.traits = traits_of(controller)
        """What the controller asks for."""
        first_bits = controller.initial_bits if controller is not None else compressor.widths[-1]
        self.first_bits: Width = as_width(first_bits)
        self.bits: Widths = self.first_bits
        """From the next iteration on."""
        interval = self._whole_interval()
        self.interval = self._opening(interval)
        """Iterations of the current interval."""
        self._is_chosen = controller is not None or len(compressor.widths) == 1
        self.period = period
        """Iterations of the round that is open, or of the next one."""
        self.terms = self._terms(interval)
        """What all ranks must have alike."""

    def _whole_interval(self) -> int:
        """Iterations of an interval, as the run begins."""
        if self.controller is None:
            return _INTERVAL
        return whole_iterations(f"interval of {_named(self.controller)}", self._interval_of(self.controller))

    def _opening(self, interval: int) -> int:
        """Iterations of the first interval, where others have as many as given."""
        opening = self.traits.opening
        if opening is None:
            return interval
        if self.period_rule is not None:
            opening = min(opening, interval)
        return whole_iterations(f"opening of {_named(self.controller)}", opening)

    def _interval_of(self, controller: Controller) -> int:
        return controller.interval if self.period_rule is None else min(controller.interval, _RULE_INTERVAL)

    def _terms(self, interval: int) -> str:
        decides, opening = self.controller is not None, self.interval
        by_parameter, tried = self.traits.wants_parameters, self.traits.trial_widths
        return f"a controller {decides=}, {opening=}, {interval=}, {by_parameter=}, {tried=}"

    def request(self, bits: Width | Sequence[Width], num_parameters: int) -> None:
        """Use a width from the next iteration on.

        Raises:
            ValueError: for an unknown width, or a wrong number of widths.
        """
        self.bits, self._is_chosen = self._checked(bits, num_parameters), True

    @property
    def is_forgotten(self) -> bool:
        """Whether there is a choice of widths, nobody has made it, and 32 bits are in force."""
        return not self._is_chosen and self.bits == UNCODED

    def _checked(self, bits: Width | Sequence[Width], num_parameters: int) -> Widths:
        compressor = self._compressor
        return check_parameter_widths(bits, compressor.widths, compressor.parameter_widths, num_parameters)

    def make(self, statistics: IntervalStatistics, num_parameters: int, rank: int) -> Decision:
        """What this rank decides at the end of an interval. There is a controller.

        Raises:
            RuntimeError: whatever the controller or the rule raises, or that it chose no width there is; naming it.
        """
        controller, rule = self.controller, self.period_rule
        assert controller is not None

        def decide() -> Widths:
            return self._checked(controller.decide(statistics), num_parameters)

        bits = _made(controller, decide, rank)
        period = self.period
        if rule is not None:
            period = _made(rule, lambda: _number(rule.decide(statistics), "a period"), rank)
        interval = _made(controller, lambda: self._next_interval(controller, statistics, bits), rank)
        return Decision(bits, interval, period)

    def _next_interval(self, controller: Controller, statistics: IntervalStatistics, bits: Widths) -> int:
        """As long as the controller says, or longer where iterations are short: to measure and decide takes some
        milliseconds, however short they are. Up to four times as long where 32 bits stay in force: little else
        is done there."""
        interval, step = _number(self._interval_of(controller), "an interval"), statistics.step_seconds
        if self.period_rule is not None or not 0 < step < math.inf:
            return interval
        least = math.ceil(self.traits.least_seconds / step)
        if bits == statistics.mean_bits == UNCODED:
            least = max(
                least, min(math.ceil(_UNCODED_STRETCH * self.traits.least_seconds / step), 2 * self.interval)
            )
        return max(interval, min(least, _MOST_STRETCHED * interval))

    def adopt(self, decision: Decision, rank: int) -> None:
        """Do what the first rank has decided, which the job counts as ``rank``.

        Raises:
            ValueError: interval or period is no positive integer: here, on every rank, and not where it was decided.
        """
        deciders = _named(self.controller), _named(self.period_rule)
        interval = whole_iterations(
            f"{deciders[0]} of rank {rank} decided on an interval of", decision.interval
        )
        period = whole_iterations(f"{deciders[1]} of rank {rank} decided on a period of", decision.period)
        self.bits, self.interval, self.period = decision.bits, interval, period

    def state_dict(self) -> dict[str, Any]:
        """State as plain types, that of the controller and the rule included."""
        return {
            "requested_bits": self.bits,
            "interval": self.interval,
            "period": self.period,
            "controller_class": None if self.controller is None else type(self.controller).__name__,
            "controller": self.controller.state_dict() if self.controller is not None else None,
            "period_rule": self.period_rule.state_dict() if self.period_rule is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, which ``state`` may hold among other things."""
        bits = state["requested_bits"]
        self.bits = bits if isinstance(bits, tuple) else check_width(bits)
        self._is_chosen = True  # at 32 bits perhaps; else the run before was told
        if isinstance(self.controller, FixedBits):  # which may have been given another one since
            self.bits = self.controller.bits
        self.interval, self.period = state["interval"], state["period"]
        if self.controller is not None:
            self.controller.load_state_dict(state["controller"])
        if self.period_rule is not None:
            self.period_rule.load_state_dict(state["period_rule"])
