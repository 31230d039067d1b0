"""Ranges that settings have to be in."""

from collections.abc import Sequence


def check_count(name: str, value: object) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number, at least 1."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} {value!r} must be a whole number, at least 1")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ``ValueError`` unless low ≤ value ≤ high."""
    if not low <= value <= high:
        raise ValueError(f"{name} {value!r} must be from {low} to {high}")


def check_keep(name: str, value: float) -> None:
    """Raise ``ValueError`` unless ``value`` can be the old share of a moving average: 0 ≤ value < 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} {value!r} must be at least 0 and less than 1")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} {value!r} is unknown; choose one of {', '.join(choices)}")
