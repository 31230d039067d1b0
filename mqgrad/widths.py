"""The bit widths a gradient can be sent at, and how they are written."""

from fractions import Fraction

Width = int | float
"""Bits per element: a whole number, or a power of two below one, which binary floats and JSON hold exactly."""

SPARSE_WIDTHS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Widths at which the extension sends the largest magnitudes only."""

CODED_WIDTHS = tuple(range(1, 9))
"""Widths that the extension quantizes and packs, in bits per element."""

DENSE_WIDTHS = (*CODED_WIDTHS, 16, 32)
"""Widths at which every element is sent."""

WIDTHS: tuple[Width, ...] = (*SPARSE_WIDTHS, *DENSE_WIDTHS)
"""Every width of the collective: below 1 the largest magnitudes, 1-8 quantized, 16 is bfloat16, 32 is a plain fp32
all-reduce."""


def check_width(bits: Width, allowed: tuple[Width, ...] = WIDTHS) -> Width:
    """Return ``bits``, whole widths as integers, if it is an allowed width.

    Raises:
        ValueError: naming the value and the allowed widths.
    """
    if isinstance(bits, bool) or bits not in allowed:
        known = ", ".join(map(format_width, allowed))
        raise ValueError(f"bit width {bits!r} is not supported; choose one of {known}")
    return as_width(bits)


def as_width(value: float) -> Width:
    """The width that a number read from a tensor or a file stands for: 4.0 is 4."""
    return int(value) if value == int(value) else float(value)


def format_width(bits: Width) -> str:
    """Text of a width: ``4``, ``1/4``."""
    return str(Fraction(bits))


def parse_width(text: str) -> Width:
    """The width that a text means: ``4``, ``1/4``, ``0.25``.

    Raises:
        ValueError: it is not a number.
    """
    try:
        return as_width(float(Fraction(text.strip())))
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{text!r} is not a number") from error
