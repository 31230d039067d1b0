"""A step of GraVAC's search (Tyagi & Swany 2023): shared by its two forms, over widths and over factors."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

Key = TypeVar("Key")


class Found(NamedTuple):
    """Where the search stands."""

    safe: Any
    candidate: Any
    is_frozen: bool


def stepped(
    safe: Key,
    candidate: Key,
    following: Key,
    *,
    gains: Mapping[Key, float],
    throughputs: Mapping[Key, float],
    tolerance: float,
) -> Found:
    """Steps 2 to 4 of the search, at the end of a window.

    Args:
        following: the next candidate; the same one where none is left.
        gains: δ of each width or factor.
        throughputs: of those tried so far.
        tolerance: ω.
    """
    if abs(gains[safe] - gains[candidate]) <= tolerance * gains[safe]:
        safe = candidate
    rates = {key: rate * gains[key] for key, rate in throughputs.items()}
    best = sorted(rates, key=lambda key: -rates[key])[:2]
    is_level = len(best) == 2 and rates[best[0]] - rates[best[1]] <= tolerance * rates[best[0]]
    if is_level or (best and following == candidate):
        return Found(best[0], best[0], True)
    return Found(safe, following, False)
