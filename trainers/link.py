"""A slow network without root: how long the transport must take, at least."""

import dataclasses

from .settings import check_not_negative, check_positive


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LinkEmulation:
    """An *emulated* link: the transport sleeps out what a collective would have taken on it.

    Loopback is too fast for the bit width to matter. This paces a rank's sending; it does not model
    congestion, nor two ranks sharing one wire. Label results obtained with it as emulated.

    Raises:
        ValueError: a rate that is not above 0, or a negative latency.
    """

    mbit_per_s: float
    """Rate at which one rank sends, in 10⁶ bits per second."""
    latency_ms: float = 0.0
    """Added to every collective, in milliseconds."""

    def __post_init__(self) -> None:
        check_positive(mbit_per_s=self.mbit_per_s)
        check_not_negative(latency_ms=self.latency_ms)

    def seconds(self, wire_bytes: int) -> float:
        """Least duration of one collective in which a rank sends ``wire_bytes``."""
        return self.latency_ms * 1e-3 + wire_bytes * 8 / (self.mbit_per_s * 1e6)

    def __str__(self) -> str:
        latency = f" + {self.latency_ms:g} ms" if self.latency_ms else ""
        return f"{self.mbit_per_s:g} Mbit/s{latency} (emulated)"
