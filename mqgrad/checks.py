"""Checks of what people set. Each raises ``ValueError``, naming the setting, its value and what is allowed."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np


def plain_number(value: Any) -> Any:
    """A number of NumPy's, as its generators draw them, as one that JSON takes; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def check_count(least: int = 1, /, **values: Any) -> None:
    """Unless every value is a whole number of at least ``least``."""
    for name, value in values.items():
        is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        _check(is_whole and value >= least, name, value, f"a whole number of at least {least}")


def check_positive(**values: Any) -> None:
    """Unless every value is a finite number above 0."""
    for name, value in values.items():
        _check(_is_finite(value) and value > 0, name, value, "a finite number above 0")


def check_not_negative(**values: Any) -> None:
    """Unless every value is a finite number of at least 0."""
    for name, value in values.items():
        _check(_is_finite(value) and value >= 0, name, value, "a finite number of at least 0")


def check_share(**values: Any) -> None:
    """Unless every value is above 0 and at most 1."""
    for name, value in values.items():
        _check(_is_finite(value) and 0 < value <= 1, name, value, "above 0 and at most 1")


def check_decay(**values: Any) -> None:
    """Unless every value can be the old share of a moving average: 0 ≤ value < 1."""
    for name, value in values.items():
        _check(_is_finite(value) and 0 <= value < 1, name, value, "at least 0 and less than 1")


def check_range(low: float, high: float, /, **values: Any) -> None:
    """Unless low ≤ value ≤ high for every value."""
    for name, value in values.items():
        _check(_is_finite(value) and low <= value <= high, name, value, f"from {low} to {high}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} {value!r} is unknown; choose one of {', '.join(choices)}")


def _check(is_right: bool, name: str, value: object, allowed: str) -> None:
    if not is_right:
        raise ValueError(f"{name} must be {allowed}, not {value!r}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
