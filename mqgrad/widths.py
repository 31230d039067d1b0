"""The bit widths a gradient can be sent at, and how they are written."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

from .checks import plain_number

Width = int | float
"""Bits per element: a whole number, or a power of two below one, which binary floats and JSON hold exactly."""

SPARSE_WIDTHS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Widths at which the extension sends the largest magnitudes only."""

Widths = Width | tuple[Width, ...]
"""One width for the whole model, or one per parameter in the order of the layout's keys."""

CODED_WIDTHS = tuple(range(1, 9))
"""Widths that the extension quantizes and packs, in bits per element."""

UNCODED = 32
"""The width at which gradients travel as they are."""

DENSE_WIDTHS = (*CODED_WIDTHS, 16, UNCODED)
"""Widths at which every element is sent."""

WIDTHS: tuple[Width, ...] = (*SPARSE_WIDTHS, *DENSE_WIDTHS)
"""Every width of the collective: below 1 the largest magnitudes, 1-8 quantized, 16 is bfloat16, 32 is a plain fp32
all-reduce."""

TIMED_WIDTHS: tuple[Width, ...] = (1, 2, 3, 4, 6, 8, 16, 32)
"""Choice, where none is given, of rules and policies that weigh seconds against noise: not sending fewer bits must be
one of the answers."""


def check_width(bits: Width, allowed: tuple[Width, ...] = WIDTHS) -> Width:
    """Return ``bits``, whole widths as integers, if it is an allowed width.

    Raises:
        ValueError: naming the value and the allowed widths.
    """
    if isinstance(bits, bool) or bits not in allowed:
        known = ", ".join(map(format_width, allowed))
        raise ValueError(f"bit width {bits!r} is not supported; choose one of {known}")
    return as_width(bits)


def check_widths(widths: Sequence[Width]) -> tuple[Width, ...]:
    """Return ``widths`` as a tuple if it is a non-empty, increasing choice of supported bit widths.

    Raises:
        ValueError: naming the value and what is allowed.
    """
    plain = [plain_number(bits) for bits in widths]
    for bits in plain:
        if type(bits) not in (int, float):
            raise ValueError(f"bit width {bits!r} must be a number")
    checked = tuple(check_width(bits) for bits in plain)
    if not checked or any(a >= b for a, b in itertools.pairwise(checked)):
        raise ValueError(f"bit widths {widths!r} must be a non-empty increasing sequence, such as (2, 4, 8)")
    return checked


def check_parameter_widths(
    bits: Width | Sequence[Width], allowed: tuple[Width, ...], mixed: tuple[Width, ...], num_parameters: int
) -> Widths:
    """Return one width, or one per parameter where they differ.

    Args:
        allowed: widths for the whole model.
        mixed: widths that parameters may have side by side.

    Raises:
        ValueError: naming the width that is not allowed, or a wrong number of widths.
    """
    if not isinstance(bits, Sequence):
        return check_width(bits, allowed)
    if len(bits) != num_parameters or not bits:
        raise ValueError(
            f"{len(bits)} bit widths for {num_parameters} parameters; give one width, or one per parameter (they are "
            "numbered in the first iteration; until then there is one width)"
        )
    if len(set(bits)) == 1:
        return check_width(bits[0], allowed)
    if not mixed:
        raise ValueError(
            "this compressor takes one bit width for all parameters; use another controller or compressor"
        )
    return tuple(check_width(width, mixed) for width in bits)


def as_width(value: float) -> Width:
    """The width that a number read from a tensor or a file stands for: 4.0 is 4."""
    return int(value) if value == int(value) else float(value)


def format_width(bits: Width) -> str:
    """Text of a width: ``4``, ``1/4``; of a mean of widths: ``3.62``."""
    return str(Fraction(bits)) if bits == int(bits) or bits < 1 else f"{bits:.3g}"


def parse_width(text: str) -> Width:
    """The width that a text means: ``4``, ``1/4``, ``0.25``.

    Raises:
        ValueError: it is not a number.
    """
    try:
        return as_width(float(Fraction(text.strip())))
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{text!r} is not a number") from error


def parse_widths(text: str) -> tuple[Width, ...]:
    """The widths that a text joins by plus signs: ``1/4+2+8``.

    Raises:
        ValueError: one is not a number.
    """
    return tuple(parse_width(width) for width in text.split("+"))
