"""Small codes packed into bytes: bit k of all elements, then bit k + 1.

Eight elements at a time, as an int64: few ops, which for some thousand elements take longer to start than to run.
(Products wrap around.)
"""

import torch

_GATHER = 0x0102040810204080
"""Times eight bytes of 0 or 1: byte i becomes bit i of the highest one."""
_SPREAD = 0x0101010101010101
"""Times a byte: eight of it."""
_PICK = 0x8040201008040201 - 2**64
"""Bit i of byte i."""


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 [N] of codes below 2^bits, N a multiple of 8, to uint8 [bits · N / 8]."""
    assert codes.numel() % 8 == 0
    planes = [(codes >> k & 1).view(torch.int64) for k in range(bits)]
    return torch.cat([plane.mul_(_GATHER).bitwise_right_shift_(56).to(torch.uint8) for plane in planes])


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of :func:`pack`: uint8 [N].

    Raises:
        ValueError: ``packed`` is not uint8, or does not divide into ``bits`` planes.
    """
    if packed.dtype != torch.uint8 or packed.numel() % bits:
        raise ValueError(f"{packed.numel()} {packed.dtype} elements do not hold codes of {bits} bits")
    first, *others = packed.view(bits, -1)
    codes = _unpack_plane(first)
    for k, plane in enumerate(others, start=1):
        codes.bitwise_or_(_unpack_plane(plane).bitwise_left_shift_(k))
    return codes


def _unpack_plane(packed: torch.Tensor) -> torch.Tensor:
    picked = packed.to(torch.int64).mul_(_SPREAD).bitwise_and_(_PICK)
    return (picked.view(torch.uint8) != 0).view(torch.uint8)
