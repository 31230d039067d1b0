"""What remembers a run serves one state: a second would go on with what it remembers of the first, without a word."""

import weakref
from typing import Protocol


class Remembers(Protocol):
    """A compressor, controller or rule."""

    def state_dict(self) -> object:
        """Empty where there is nothing to remember."""
        ...


_TAKEN: "weakref.WeakValueDictionary[int, Remembers]" = weakref.WeakValueDictionary()
"""By id: what a state has, or had and closed."""
_KEPT: dict[int, Remembers] = {}
"""Those among them to which no weak reference can be made, as most controllers': small, and no id is used again."""


def check_free(**parts: Remembers | None) -> None:
    """Check that no state has or had one of these parts, by the names of its arguments, and that no residuals are
    left in it, which would be taken for those of another model's parameters.

    Raises:
        ValueError: one has, or there are.
        TypeError: one is a class.
    """
    for name, part in parts.items():
        if isinstance(part, type):
            raise TypeError(
                f"{name} is the class {part.__name__}: give an object of it, as {part.__name__}()"
            )
        if id(part) in _TAKEN or id(part) in _KEPT:
            raise ValueError(
                f"{name}: this {type(part).__name__} belongs to another CompressionState, open or closed, and "
                "remembers its run: give each state an object of its own"
            )
        if getattr(part, "num_residuals", 0):
            raise ValueError(
                f"{name}: this {type(part).__name__} still holds what error feedback owes of an earlier run: give a "
                "new object, or its name"
            )


def check_savable(*parts: Remembers | None) -> None:
    """Have all parts tell their state: what cannot is found before there is anything to undo."""
    for part in parts:
        if part is not None:
            part.state_dict()


def claim(*parts: Remembers | None) -> None:
    """Make these parts a state's, as far as they remember anything."""
    for part in parts:
        if part is not None and part.state_dict():
            try:
                _TAKEN[id(part)] = part
            except TypeError:
                _KEPT[id(part)] = part
