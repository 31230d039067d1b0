"""GraVAC's online search of the compression factor, apart from how gradients travel."""

import dataclasses
import math
from typing import Any, NamedTuple

from ..checks import check_count, check_decay, check_range
from ..gain_search import stepped
from ..saved_state import restore_all, saved_fields
from ..statistics.moving_average import ewma

DENSE = 1.0
"""The factor of an iteration in which everything is sent."""


class Energies(NamedTuple):
    """Squared norms of an iteration, summed over ranks."""

    full: float
    """Of what there was to send, feedback included: ‖g_ef‖²."""
    safe: float
    """Of what the safe factor would send of it."""
    candidate: float
    """Of what the candidate would send of it: ‖g_c‖²."""


@dataclasses.dataclass(kw_only=True)
class FactorSearch:
    """The rule of Tyagi & Swany 2023, given each iteration's energies and seconds, equal on all ranks.

    With the gain δ(θ) = E‖g_c‖²/E‖g_ef‖², the safe factor θ_min and the candidate θ_s·θ_min:

    1. Send the candidate if its δ ≥ ε, else the safe factor if its δ ≥ ε, else everything. The gain of a factor
       that was never measured counts as too small.
    2. Every ``window`` iterations: if |δ_min − δ_c|/δ_min ≤ ω, the candidate becomes the safe factor.
    3. If the two best δ·throughput of the factors sent so far differ by ≤ ω, or no candidate is left, freeze the
       best: from then on it is sent where its δ ≥ ε.
    4. Else the candidate becomes ``growth`` times as large.

    Raises:
        ValueError: for a setting out of its range.
    """

    least_factor: float = 10.0
    """The first safe factor: elements for each that is sent."""
    largest_factor: float = 1000.0
    """No candidate is larger; the paper ends at 1000 or 2000."""
    growth: float = 2.0
    """By which the candidate grows after a window."""
    least_gain: float = 0.7
    """ε; the paper uses 0.7 and 0.9."""
    tolerance: float = 0.01
    """ω."""
    window: int = 500
    """Iterations between two steps of the search; the paper uses 500 to 2000."""
    keep: float = 0.9
    """Share of the old value in the averages of gain and throughput."""
    safe: float = dataclasses.field(init=False, repr=False)
    """State: θ_min."""
    candidate: float = dataclasses.field(init=False, repr=False)
    """State: θ_s·θ_min."""
    sent: float = dataclasses.field(init=False, repr=False, default=DENSE)
    """State: the factor in use."""
    is_frozen: bool = dataclasses.field(init=False, repr=False, default=False)
    """State: whether the search is over."""
    observed: int = dataclasses.field(init=False, repr=False, default=0)
    """State: iterations learned from."""
    gains: dict[float, float] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """State: EWMA of δ by factor."""
    throughputs: dict[float, float] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """State: EWMA of the iterations per second by factor, of those that were sent."""

    def __post_init__(self) -> None:
        if not 1 < self.least_factor <= self.largest_factor:
            raise ValueError(
                f"least_factor {self.least_factor!r} must be more than 1 and at most largest_factor, "
                f"{self.largest_factor!r}"
            )
        if not self.growth > 1:
            raise ValueError(f"growth {self.growth!r} must be more than 1")
        check_range(0, 1, least_gain=self.least_gain, tolerance=self.tolerance)
        check_decay(keep=self.keep)
        check_count(window=self.window)
        self.safe = self.least_factor
        self.candidate = self._next(self.safe)

    def observe(self, energies: Energies, seconds: float) -> None:
        """Learn from an iteration; at the end of a window, take a step of the search.

        Args:
            energies: of ``safe`` and ``candidate`` as they are now. Values that are not finite teach nothing.
            seconds: what the iteration took; 0 if that is not known.
        """
        if not all(map(math.isfinite, energies)):
            return
        self._average(self.gains, self.safe, _gain(energies.safe, energies))
        if self.candidate != self.safe:
            self._average(self.gains, self.candidate, _gain(energies.candidate, energies))
        if seconds > 0 and self.sent != DENSE:
            self._average(self.throughputs, self.sent, 1 / seconds)
        self.observed += 1
        if not self.is_frozen and self.observed % self.window == 0:
            self._search()

    def choose(self) -> float:
        """The factor of the next iteration; ``DENSE`` if none is good enough."""
        good = (f for f in (self.candidate, self.safe) if self.gains.get(f, -math.inf) >= self.least_gain)
        self.sent = next(good, DENSE)
        return self.sent

    def search_state(self) -> dict[str, Any]:
        """All that the search has learned, as plain types."""
        return saved_fields(self, _STATE)

    def load_search_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`search_state` returned."""
        restore_all(self, _STATE, state, "the search for a factor")

    def _search(self) -> None:
        self.safe, self.candidate, self.is_frozen = stepped(
            self.safe,
            self.candidate,
            self._next(self.candidate),
            gains=self.gains,
            throughputs=self.throughputs,
            tolerance=self.tolerance,
        )

    def _next(self, factor: float) -> float:
        return min(factor * self.growth, self.largest_factor)

    def _average(self, averages: dict[float, float], factor: float, value: float) -> None:
        averages[factor] = ewma(averages.get(factor), value, self.keep)


_STATE = ("safe", "candidate", "sent", "is_frozen", "observed", "gains", "throughputs")


def _gain(sent: float, energies: Energies) -> float:
    return sent / energies.full if energies.full > 0 else 1.0
