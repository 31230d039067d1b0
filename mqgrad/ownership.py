"""What remembers a run belongs to one state: two that share it would mix what they remember, without a word."""

import weakref
from typing import Protocol


class Remembers(Protocol):
    """A compressor, controller or rule."""

    def state_dict(self) -> object:
        """Empty where there is nothing to remember."""
        ...


_OWNERS: "weakref.WeakValueDictionary[int, object]" = weakref.WeakValueDictionary()
"""By the id of what is owned, which its owner keeps alive."""


def claim(owner: object, **parts: Remembers | None) -> None:
    """Make ``owner`` the one of these parts, by the names of its arguments, for as long as it lives.

    Raises:
        ValueError: another one, that has not released it, has one of them already.
    """
    remembering = {name: part for name, part in parts.items() if part is not None and part.state_dict()}
    for name, part in remembering.items():
        if _OWNERS.get(id(part), owner) is not owner:
            raise ValueError(
                f"{name}: this {type(part).__name__} belongs to another CompressionState and remembers its run: give "
                "each state an object of its own, or close() the other one before"
            )
    _OWNERS.update({id(part): owner for part in remembering.values()})


def release(owner: object) -> None:
    """Give up what ``owner`` has claimed."""
    for key in [key for key, other in _OWNERS.items() if other is owner]:
        del _OWNERS[key]
