"""Time computed from bytes, for runs that must repeat exactly."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from mqgrad.checks import check_not_negative, check_positive
from mqgrad.controllers.base import Controller, traits_of
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.widths import Width

from ..link import LinkEmulation, SwitchingEmulation


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelClock:
    """A *modelled* clock: an iteration takes compute + latency + bytes·8/rate.

    Under it nothing is paced, so training runs at full speed, and the same seed gives the same statistics to
    the last digit. Label results obtained with it as modelled.

    Raises:
        ValueError: a rate that is not above 0, or negative seconds.
    """

    compute_seconds: float
    """Seconds of forward, backward and optimizer step per iteration."""
    mbit_per_s: float
    """Rate at which one rank sends, in 10⁶ bits per second."""
    latency_ms: float = 0.0
    """Added to every iteration, in milliseconds."""

    def __post_init__(self) -> None:
        check_not_negative(compute_seconds=self.compute_seconds, latency_ms=self.latency_ms)
        check_positive(mbit_per_s=self.mbit_per_s)

    def on_link(self, link: LinkEmulation) -> "ModelClock":
        """The same compute on another link, of one rate; with its latency, if it has one."""
        if isinstance(link, SwitchingEmulation):
            raise ValueError(f"a modelled clock knows one rate, not {link}")
        return dataclasses.replace(
            self, mbit_per_s=link.mbit_per_s, latency_ms=link.latency_ms or self.latency_ms
        )

    def apply(self, statistics: IntervalStatistics) -> IntervalStatistics:
        """Replace the measured seconds by modelled ones."""
        wire_seconds = self.latency_ms * 1e-3 + statistics.wire_bytes * 8 / (self.mbit_per_s * 1e6)
        return dataclasses.replace(
            statistics,
            step_seconds=self.compute_seconds + wire_seconds,
            compute_seconds=self.compute_seconds,
            encode_seconds=0.0,
            waited_seconds=wire_seconds,
            wire_seconds=wire_seconds,
            fixed_wire_seconds=self.latency_ms * 1e-3,
            decode_seconds=0.0,
            decide_seconds=0.0,
        )


class ModelledTime:
    """A controller that is shown the seconds of a clock."""

    def __init__(self, controller: Controller, clock: ModelClock) -> None:
        self._controller = controller
        self._clock = clock
        self.interval = controller.interval
        traits = traits_of(controller)
        self.opening = traits.opening
        self.wants_parameters = traits.wants_parameters
        self.trial_widths = traits.trial_widths

    @property
    def initial_bits(self) -> Width:
        return self._controller.initial_bits

    def decide(self, statistics: IntervalStatistics) -> Width | Sequence[Width]:
        bits = self._controller.decide(self._clock.apply(statistics))
        self.interval = self._controller.interval  # which it may have changed
        return bits

    def state_dict(self) -> dict[str, Any]:
        return self._controller.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._controller.load_state_dict(state)
        self.interval = self._controller.interval
