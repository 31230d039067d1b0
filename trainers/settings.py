"""Checks of what people set."""

import math
import numbers
import os


def check_positive_ints(**values: object) -> None:
    """Raise ValueError, naming the setting and the value, unless every value is an int of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")


def check_positive(**values: object) -> None:
    """Raise ValueError, naming the setting and the value, unless every value is a finite number above 0."""
    for name, value in values.items():
        if not _is_number(value) or value <= 0:  # type: ignore[operator]
            raise ValueError(f"{name} must be a finite number above 0, not {value!r}")


def check_not_negative(**values: object) -> None:
    """Raise ValueError, naming the setting and the value, unless every value is a finite number of at least 0."""
    for name, value in values.items():
        if not _is_number(value) or value < 0:  # type: ignore[operator]
            raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")


def check_paths(**values: object) -> None:
    """Raise ValueError, naming the setting and the value, unless every value is a string or a path."""
    for name, value in values.items():
        if not isinstance(value, (str, os.PathLike)):
            raise ValueError(
                f"{name} must be a string, not {value!r}: to --set, whose values are JSON, "
                f"give it as '{name}=\"{value}\"'"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
