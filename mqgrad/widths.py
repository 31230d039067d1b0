"""The bit widths a gradient can be sent at, and the bytes each one takes."""

CODED_WIDTHS = tuple(range(1, 9))
"""Widths that the extension quantizes and packs, in bits per element."""

WIDTHS = (*CODED_WIDTHS, 16, 32)
"""Every width of the collective: 1-8 quantized, 16 is bfloat16, 32 is a plain fp32 all-reduce."""


def check_width(bits: int, allowed: tuple[int, ...] = WIDTHS) -> int:
    """Return ``bits`` if it is an allowed width.

    Raises:
        ValueError: naming the value and the allowed widths.
    """
    if isinstance(bits, bool) or bits not in allowed:
        raise ValueError(f"bit width {bits!r} is not supported; choose one of {', '.join(map(str, allowed))}")
    return int(bits)
