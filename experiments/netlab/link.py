"""What a link of the lab carries: its rate, its queue, and a schedule of rates."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mqgrad.checks import check_not_negative, check_positive

_UNITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}  # of Mbit/s
_RATE = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(_UNITS)})")
_LEAST_MBIT_PER_S = 0.1  # below this one packet takes longer than the queue's latency
_LEAST_SWITCH_SECONDS = 0.5  # a change takes up to 0.1 s with many hosts
_PEAK = 1.05
"""Of the rate: how fast a link makes up for what it is behind."""
_BEHIND_SECONDS, _AT_ONCE_SECONDS = 2e-3, 0.5e-3
SHAPING = f"htb, {_BEHIND_SECONDS:g} s of the rate and {_AT_ONCE_SECONDS:g} s of {_PEAK:g} of it"
"""What links of a lab are, for records of what was measured on them."""
_LEAST_BEHIND, _LEAST_AT_ONCE = 16384, 3200  # bytes; the latter two packets
_MOST_BYTES = 2**32 - 2**20  # of a queue, which tc counts by 32 bits
_MOST_MBIT_PER_S = 1e6
_LARGEST_PACKET = 65536  # several of one connection, which the kernel moves as one


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkShape:
    """The token buckets (``htb``) at both ends of a link.

    A token bucket lets a burst through at full speed after a pause. That must be little beside what training sends
    at once, or the link looks faster than it is: with 2 ms of the rate, 244 KiB at 1 Gbit/s, a message of 183 kB that
    follows a pause passes in 0.2 ms in place of 1.5. With less the kernel cannot keep 1 Gbit/s up where cores are
    busy: what it is late with is lost. So there are two buckets. One of 2 ms keeps the rate on average; one of 0.5 ms
    lets packets out at no more than 1.05 times the rate, also after a pause. Packets are half as large as that at
    most, so that it goes on filling up while one of them waits for a timer that is late.

    They are those of ``htb``, which may go below empty by a packet, and not of ``tbf``: a packet that is queued when
    a link gets slower may be larger than its new buckets, and ``tbf`` would hold it, and all behind it, until the
    rate rises.

    Raises:
        ValueError: a figure that no link can have.
    """

    rate_mbit_per_s: float | None = 100.0
    """None: not shaped."""
    queue_ms: float = 200.0
    """The longest wait in the link's queue; a packet that would wait longer is dropped."""

    def __post_init__(self) -> None:
        if self.rate_mbit_per_s is not None:
            check_not_negative(rate_mbit_per_s=self.rate_mbit_per_s)
            _check_rate(self.rate_mbit_per_s)
        check_positive(queue_ms=self.queue_ms)
        if self.rate_mbit_per_s is not None and self._bytes_in(self.queue_ms / 1e3) >= _MOST_BYTES:
            raise ValueError(
                f"a queue of {self.queue_ms:g} ms at {self.rate_mbit_per_s:g} Mbit/s is too long: tc holds 4 GiB"
            )

    def at(self, rate_mbit_per_s: float | None) -> "LinkShape":
        """The same link at another rate."""
        return replace(self, rate_mbit_per_s=rate_mbit_per_s)

    def changed_to(self, interface: str, rate_mbit_per_s: float | None) -> list[str]:
        """Lines for ``tc`` that give an interface of such a link another rate; what is queued stays so."""
        if rate_mbit_per_s is None:
            return [f"qdisc replace dev {interface} root noqueue"]
        is_new = self.rate_mbit_per_s is None
        root = [f"qdisc replace dev {interface} root handle 1: htb default 1"] if is_new else []
        return [*root, *self.at(rate_mbit_per_s)._buckets(interface)]

    def _buckets(self, interface: str) -> list[str]:
        """One class of ``htb`` sends while neither of its buckets is below empty."""
        assert self.rate_mbit_per_s is not None
        rate, behind = round(self.rate_mbit_per_s * 1e6), round(self._bytes_in(_BEHIND_SECONDS))
        behind = max(_LEAST_BEHIND, behind)
        waiting = behind + round(self._bytes_in(self.queue_ms / 1e3))
        sizes = (f"{behind - self.largest_packet}", f"{self._at_once - self.largest_packet}")
        buckets = f"rate {rate}bit burst {sizes[0]} ceil {round(_PEAK * rate)}bit cburst {sizes[1]}"
        return [
            f"class replace dev {interface} parent 1: classid 1:1 htb {buckets} quantum {_LARGEST_PACKET}",
            f"qdisc replace dev {interface} parent 1:1 handle 10: bfifo limit {waiting}",
        ]

    @property
    def largest_packet(self) -> int:
        """Bytes that the kernel should make one packet at most: the queue would take a larger one apart."""
        is_limited = self.rate_mbit_per_s is not None
        return min(self._at_once // 2, _LARGEST_PACKET) if is_limited else _LARGEST_PACKET

    @property
    def _at_once(self) -> int:
        return max(_LEAST_AT_ONCE, round(self._bytes_in(_AT_ONCE_SECONDS)))

    def _bytes_in(self, seconds: float) -> float:
        assert self.rate_mbit_per_s is not None
        return self.rate_mbit_per_s * 1e6 / 8 * seconds


@dataclass(frozen=True, slots=True)
class RateChange:
    """One entry of a schedule."""

    seconds: float  # on the wall, since the commands were started; in a comparison, since training began
    rate_mbit_per_s: float | None


@dataclass(frozen=True, slots=True)
class LinkRates:
    """The rates that a link has in turn: one for ever, or several, each for ``switch_seconds``.

    Raises:
        ValueError: the rates change at once, or in no time at all.
    """

    mbit_per_s: tuple[float | None, ...]
    """None: not shaped."""
    switch_seconds: float = math.inf

    def __post_init__(self) -> None:
        if len(self.mbit_per_s) > 1 and not _LEAST_SWITCH_SECONDS <= self.switch_seconds < math.inf:
            raise ValueError(
                f"a link cannot switch every {self.switch_seconds:g} s: at least {_LEAST_SWITCH_SECONDS:g}"
            )

    def changes(self) -> Iterator[RateChange]:
        """What follows the first rate, without end."""
        if len(self.mbit_per_s) == 1:
            return
        rates = itertools.cycle(self.mbit_per_s)
        next(rates)
        for number in itertools.count(1):
            yield RateChange(number * self.switch_seconds, next(rates))


def parse_link_rates(text: str) -> LinkRates:
    """``"100mbit"`` → one rate; ``"100mbit/1gbit@10s"`` → 100 Mbit/s, after 10 s 1 Gbit/s, and so on in turn.

    Raises:
        ValueError: not of this form.
    """
    names, separator, period = text.partition("@")
    rates = tuple(parse_link_rate(name) for name in names.split("/"))
    if not separator and len(rates) == 1:
        return LinkRates(rates)
    if len(rates) < 2 or not re.fullmatch(r"\d+(\.\d+)?s", period):
        raise ValueError(f"{text!r} is not RATE or RATE/RATE@SECONDSs, as in 100mbit/1gbit@10s")
    return LinkRates(rates, float(period[:-1]))


def parse_link_rate(text: str) -> float | None:
    """``"100mbit"`` → 100.0 Mbit/s, ``"none"`` → None.

    Raises:
        ValueError: not a rate, or one that no link can have. Units must be given, because ``tc`` itself reads
            ``mbps`` as megabytes.
    """
    if text == "none":
        return None
    match = _RATE.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a rate: give e.g. 500kbit, 100mbit, 1gbit, or none")
    rate = float(match[1]) * _UNITS[match[2]]
    _check_rate(rate)  # now, and not when it comes into force
    return rate


def _check_rate(mbit_per_s: float) -> None:
    if mbit_per_s < _LEAST_MBIT_PER_S:
        raise ValueError(f"a rate of {mbit_per_s:g} Mbit/s is too low: at least {_LEAST_MBIT_PER_S}")
    if mbit_per_s > _MOST_MBIT_PER_S:
        raise ValueError(f"a rate of {mbit_per_s:g} Mbit/s is too high: at most {_MOST_MBIT_PER_S:g}")


def format_link_rate(rate_mbit_per_s: float | None) -> str:
    """The inverse of ``parse_link_rate``."""
    if rate_mbit_per_s is None:
        return "none"
    unit = "gbit" if rate_mbit_per_s >= 1000 else "mbit"
    return f"{rate_mbit_per_s / _UNITS[unit]:g}{unit}"
