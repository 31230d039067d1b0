"""When GraVAC's search is over (Tyagi & Swany 2023): shared by its two forms, over widths and over factors."""

from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")


def settled(rates: Mapping[Key, float], tolerance: float, *, is_last: bool) -> Key | None:
    """The best of what was tried, once the search is over: None before.

    Args:
        rates: throughput × gain of each width or factor tried so far.
        tolerance: ω; it is over where the two best differ by no more of the best.
        is_last: whether no candidate is left, with which it is over, too, if anything was tried.
    """
    best = sorted(rates.values(), reverse=True)[:2]
    is_level = len(best) == 2 and best[0] - best[1] <= tolerance * best[0]
    return max(rates, key=lambda key: rates[key]) if is_level or (rates and is_last) else None
