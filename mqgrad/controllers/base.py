"""The protocol of everything that chooses a bit width."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..statistics.interval import IntervalStatistics
from ..widths import Width


@runtime_checkable
class Controller(Protocol):
    """Chooses the bit width of the next interval from what the last one showed.

    Every rank holds one and feeds it the same statistics; rank 0's answer is broadcast and used, so a
    controller need not be bit-reproducible across machines. All its state is in ``state_dict``.

    One with an attribute ``wants_parameters`` that is true gets ``statistics.parameters``; ``trial_widths`` beside it
    are widths at which one gradient of each interval is tried (``ParameterStatistics.trials``). One with an attribute
    ``opening`` decides for the first time after so many iterations, however long its intervals are. Of one with an
    attribute ``least_seconds`` intervals that would take less are made longer, up to ten times. ``widths`` are those
    it may choose, ``parameter_widths`` those it may give to parameters side by side: a run with a compressor
    that lacks some of them is refused.
    """

    interval: int
    """Iterations between two decisions; rank 0's counts."""

    @property
    def initial_bits(self) -> Width:
        """Width until the first decision."""
        ...

    def decide(self, statistics: IntervalStatistics) -> Width | Sequence[Width]:
        """Observe one interval and return the width of the next: one, or one per ``statistics.parameters``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State as tensors and plain types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        ...


def wants_parameters(controller: Controller | None) -> bool:
    """Whether the controller asks for ``IntervalStatistics.parameters``."""
    return bool(getattr(controller, "wants_parameters", False))


def trial_widths(controller: Controller | None) -> tuple[Width, ...]:
    """Widths at which the controller wants the gradient to be tried."""
    return tuple(getattr(controller, "trial_widths", ()))


def choices(controller: Controller | None) -> tuple[Width, ...]:
    """Widths that the controller may choose or wants to be tried, as far as it tells."""
    return tuple(dict.fromkeys((*getattr(controller, "widths", ()), *trial_widths(controller))))


def parameter_widths(controller: Controller | None) -> tuple[Width, ...]:
    """Widths that the controller may give to parameters side by side; empty where it decides one for all."""
    return tuple(getattr(controller, "parameter_widths", ()))


def least_seconds(controller: Controller) -> float:
    """Seconds that an interval of the controller should take."""
    return float(getattr(controller, "least_seconds", 0.0))


def opening_of(controller: Controller) -> int:
    """Iterations until the controller's first decision: its ``opening``, else a whole interval."""
    opening: int | None = getattr(controller, "opening", None)
    return controller.interval if opening is None else opening
