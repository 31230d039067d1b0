"""A slow network without root: how long the transport must take, at least."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator

from mqgrad.checks import check_not_negative, check_positive


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
        return self.latency_ms * 1e-3 + wire_bytes * 8 / (self.rate_now() * 1e6)

    def begin(self) -> None:
        """A run begins: its link, if it has several rates, is at the first."""

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """The run trains within such blocks: the seconds of a link's rates pass here alone."""
        yield

    def rate_now(self) -> float:
        """The rate at this moment, in Mbit/s."""
        return self.mbit_per_s

    def __str__(self) -> str:
        latency = f" + {self.latency_ms:g} ms" if self.latency_ms else ""
        return f"{self.mbit_per_s:g} Mbit/s{latency} (emulated)"


@dataclasses.dataclass(slots=True)
class _TrainingClock:
    """Seconds of training: those of the blocks that have ended, and of the one under way."""

    trained: float | None = None
    """None before the first use."""
    since: float | None = None
    """When the block under way began, by this process's monotonic clock; None between two."""

    @property
    def seconds(self) -> float:
        under_way = 0.0 if self.since is None else time.monotonic() - self.since
        return (self.trained or 0.0) + under_way

    def go_on(self) -> None:
        """A block begins."""
        self.trained, self.since = self.seconds, time.monotonic()

    def stop(self) -> None:
        """The block has ended."""
        self.trained, self.since = self.seconds, None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwitchingEmulation(LinkEmulation):
    """An emulated link whose rate changes while a run goes on: ``mbit_per_s``, then the others, then it again.

    It switches by the seconds of training since :meth:`begin`: evaluations, of which a run has more at a fast rate,
    take nothing away from a slow one. Every rank counts for itself, and ranks train at the same time. Where nobody
    tells it of training it counts all seconds since its first use. A collective keeps the rate at which it began.

    Raises:
        ValueError: as above; no other rate, or no time between two of them.
    """

    others_mbit_per_s: tuple[float, ...]
    switch_seconds: float
    _clock: _TrainingClock = dataclasses.field(init=False, default_factory=_TrainingClock, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(switch_seconds=self.switch_seconds)
        if not self.others_mbit_per_s:
            raise ValueError("a link that switches needs another rate to switch to")
        for rate in self.others_mbit_per_s:
            check_positive(mbit_per_s=rate)

    def begin(self) -> None:
        self._clock.trained, self._clock.since = 0.0, None

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        self._clock.go_on()
        try:
            yield
        finally:
            self._clock.stop()

    def rate_now(self) -> float:
        if self._clock.trained is None:
            self._clock.go_on()
        rates = (self.mbit_per_s, *self.others_mbit_per_s)
        return rates[int(self._clock.seconds / self.switch_seconds) % len(rates)]

    def __str__(self) -> str:
        rates = " / ".join(f"{rate:g}" for rate in (self.mbit_per_s, *self.others_mbit_per_s))
        latency = f" + {self.latency_ms:g} ms" if self.latency_ms else ""
        return f"{rates} Mbit/s every {self.switch_seconds:g} s{latency} (emulated)"


def parse_emulation(text: str, latency_ms: float = 0.0) -> LinkEmulation:
    """``"100"`` → 100 Mbit/s; ``"100/1000@10"`` → 100 Mbit/s at first, after 10 s 1000 Mbit/s, and so on in turn.

    Raises:
        ValueError: not of this form, or an impossible rate.
    """
    match = re.fullmatch(r"([^/@]+)((?:/[^/@]+)+)@([^/@]+)", text)
    try:
        if match is None:
            return LinkEmulation(mbit_per_s=float(text), latency_ms=latency_ms)
        others = tuple(float(rate) for rate in match[2][1:].split("/"))
        return SwitchingEmulation(
            mbit_per_s=float(match[1]),
            others_mbit_per_s=others,
            switch_seconds=float(match[3]),
            latency_ms=latency_ms,
        )
    except ValueError as error:
        raise ValueError(f"link {text!r}: {error}; give Mbit/s, as in 100 or 100/1000@10 (seconds)") from None
