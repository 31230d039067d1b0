"""An emulated link: when what is sent over it would have arrived."""

from typing import Literal, Protocol

Direction = Literal["in", "out"]
BOTH_WAYS: tuple[Direction, ...] = ("in", "out")


class Link(Protocol):
    """A network slower than the one at hand."""

    def seconds(self, wire_bytes: int) -> float:
        """Least duration of a collective in which each rank sends this many bytes."""
        ...


def check_link(link: object) -> None:
    """Raise ``TypeError`` unless None or a :class:`Link`."""
    if link is not None and not callable(getattr(link, "seconds", None)):
        raise TypeError(f"link {link!r} cannot pace anything: give an object with seconds(wire_bytes)")


class PacedLink:
    """A full-duplex link of this rank; each direction carries one collective after another."""

    def __init__(self, link: Link) -> None:
        check_link(link)
        self._link = link
        self._free: dict[Direction, float] = dict.fromkeys(BOTH_WAYS, 0.0)

    def arrival(self, begun: float, link_bytes: float, ways: tuple[Direction, ...]) -> float:
        """When the last byte of a collective arrives that begins at ``begun``, by ``time.perf_counter``."""
        free = max(self._free[way] for way in ways)
        arrival = max(begun, free) + self._link.seconds(int(link_bytes))
        sent = arrival - self._link.seconds(0)  # latency delays what is sent, not what follows
        self._free.update(dict.fromkeys(ways, sent))
        return arrival
