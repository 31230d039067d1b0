"""Floats of which none is special to the code under test."""

import torch
from torch import Tensor


def any_floats(numel: int, seed: int = 0) -> Tensor:
    """Every bit pattern is as likely as any other: NaNs, infinities, denormals and ties included."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (numel,), generator=generator, dtype=torch.int64).to(torch.int32)
    bits[::5] &= -0x8000  # ties between bfloat16 values
    bits[3::50] = 0x7F800000  # infinity
    bits[4::50] = 0x7F800001  # the NaN that rounding would turn into it
    return bits.view(torch.float32)
