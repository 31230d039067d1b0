"""Codes as a stream of bits: Note [Payload] of csrc/payload.h, in plain torch."""

import torch
from torch import Tensor


def pack(codes_N: Tensor, bits: int) -> Tensor:
    """Note [Payload]: the little-endian bit stream, uint8 [ceil(N * bits / 8)]."""
    stream = (codes_N[:, None] >> torch.arange(bits, device=codes_N.device)) & 1
    stream = torch.nn.functional.pad(stream.flatten(), (0, -codes_N.numel() * bits % 8)).view(-1, 8)
    return (stream << torch.arange(8, device=codes_N.device)).sum(1).to(torch.uint8)


def unpack(packed: Tensor, numel: int, bits: int) -> Tensor:
    """The inverse of `pack`: int64 [numel]."""
    stream = (packed.to(torch.int64)[:, None] >> torch.arange(8, device=packed.device)) & 1
    codes = stream.flatten()[: numel * bits].view(numel, bits)
    return (codes << torch.arange(bits, device=packed.device)).sum(1)
