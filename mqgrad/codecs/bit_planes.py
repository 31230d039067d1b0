"""Small codes packed into bytes: bit k of all elements, then bit k + 1."""

import torch


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 [N] of codes below 2^bits, N a multiple of 8, to uint8 [bits · N / 8]."""
    assert codes.numel() % 8 == 0
    planes = []
    for k in range(bits):
        plane = (codes >> k & 1).view(-1, 8)
        packed = plane[:, 0].clone()
        for i in range(1, 8):
            packed |= plane[:, i] << i
        planes.append(packed)
    return torch.cat(planes)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of :func:`pack`: uint8 [N].

    Raises:
        ValueError: ``packed`` is not uint8, or does not divide into ``bits`` planes.
    """
    if packed.dtype != torch.uint8 or packed.numel() % bits:
        raise ValueError(f"{packed.numel()} {packed.dtype} elements do not hold codes of {bits} bits")
    codes = packed.new_zeros(packed.numel() // bits, 8)
    for k, plane in enumerate(packed.view(bits, -1)):
        for i in range(8):
            codes[:, i] |= (plane >> i & 1) << k
    return codes.view(-1)
