"""What remembers a run belongs to one state: two that share it would mix what they remember, without a word."""

import gc
import weakref
from typing import Protocol


class Remembers(Protocol):
    """A compressor, controller or rule."""

    def state_dict(self) -> object:
        """Empty where there is nothing to remember."""
        ...


_OWNERS: "weakref.WeakValueDictionary[int, object]" = weakref.WeakValueDictionary()
"""By the id of what is owned, which its owner keeps alive."""


def check_free(**parts: Remembers | None) -> None:
    """Check that no open state has one of these parts, by the names of its arguments, and that no earlier run left
    residuals in it, which would be taken for those of another model's parameters.

    Raises:
        ValueError: one has, or one did.
    """
    for name, part in parts.items():
        if part is not None and id(part) in _OWNERS:
            gc.collect()  # of states that nobody has any more, on all ranks alike
            if id(part) in _OWNERS:
                raise ValueError(
                    f"{name}: this {type(part).__name__} belongs to another CompressionState and remembers its run: "
                    "give each state an object of its own"
                )
        if getattr(part, "num_residuals", 0):
            raise ValueError(
                f"{name}: this {type(part).__name__} still holds what error feedback owes of an earlier run: give a "
                "new object, or its name"
            )


def claim(owner: object, *parts: Remembers | None) -> None:
    """Make ``owner`` the one of these parts, as far as they remember anything, until it is released or gone."""
    _OWNERS.update({id(part): owner for part in parts if part is not None and part.state_dict()})


def release(owner: object) -> None:
    """Give up what ``owner`` has claimed."""
    for key in [key for key, other in _OWNERS.items() if other is owner]:
        del _OWNERS[key]
