"""The protocol of everything that chooses a bit width."""

import dataclasses
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
    attribute ``least_seconds`` intervals that would take less are made longer, up to ten times: until they take as
    long, or four times as long where 32 bits stay in force. ``widths`` are those
    it may choose, ``parameter_widths`` those it may give to parameters side by side: a run with a compressor
    that lacks some of them is refused. All of these are read once, when a run begins.
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ControllerTraits:
    """What a controller asks for by attributes that it may have; see :class:`Controller`."""

    opening: int | None = None
    """Iterations until its first decision; None for a whole interval."""
    least_seconds: float = 0.0
    """That an interval should take."""
    widths: tuple[Width, ...] = ()
    """That it may choose, as far as it tells."""
    parameter_widths: tuple[Width, ...] = ()
    """That it may give to parameters side by side; empty where it decides one for all."""
    trial_widths: tuple[Width, ...] = ()
    """At which it wants the gradient to be tried."""
    wants_parameters: bool = False
    """Whether it asks for ``IntervalStatistics.parameters``."""

    @property
    def choices(self) -> tuple[Width, ...]:
        """Widths that it may choose or wants to be tried."""
        return tuple(dict.fromkeys((*self.widths, *self.trial_widths)))


def traits_of(controller: Controller | None) -> ControllerTraits:
    """The defaults where it lacks an attribute, and without a controller."""
    return ControllerTraits(
        opening=getattr(controller, "opening", None),
        least_seconds=float(getattr(controller, "least_seconds", 0.0)),
        widths=tuple(getattr(controller, "widths", ())),
        parameter_widths=tuple(getattr(controller, "parameter_widths", ())),
        trial_widths=tuple(getattr(controller, "trial_widths", ())),
        wants_parameters=bool(getattr(controller, "wants_parameters", False)),
    )
