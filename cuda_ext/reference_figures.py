"""Figures of gradients in plain torch. Note [Sketch] in csrc/figures.h."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mqgrad.cuda_ext.reference_random import mix64, random_key

SKETCH_SIZE = 256
SLICE = 2**24
"""Elements that are sketched at a time: what is made of them takes 14 bytes each."""
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


def gradient_figures(gradients: Sequence[Tensor], keys: Sequence[int], bucket_size: int, seed: int) -> Tensor:
    """See `mqgrad.cuda_ext.gradient_figures`."""
    rows = [_figures(x.float(), key, bucket_size, seed) for x, key in zip(gradients, keys, strict=True)]
    return torch.stack(rows)


def _figures(x: Tensor, key: int, bucket_size: int, seed: int) -> Tensor:
    if x.numel() == 0:
        return x.new_zeros(2 + SKETCH_SIZE, dtype=torch.float64)
    norm_sq = torch.linalg.vector_norm(x, dtype=torch.float64).square()
    return torch.cat([torch.stack([norm_sq, _peak_energy(x, bucket_size)]), _sketch(x, key, seed)])


def _peak_energy(x: Tensor, bucket_size: int) -> Tensor:
    size = min(bucket_size, x.numel())
    padding = -x.numel() % size
    peaks = torch.nn.functional.pad(x, (0, padding)).view(-1, size).abs().amax(dim=1).double().square()
    counts = torch.full_like(peaks, size)
    counts[-1] -= padding
    return (counts * peaks).sum()


def _sketch(x: Tensor, key: int, seed: int) -> Tensor:
    start = random_key(seed, torch.full((), key, dtype=torch.int64, device=x.device))
    slices = [_sketch_of_slice(x[at : at + SLICE], start, at) for at in range(0, x.numel(), SLICE)]
    return torch.stack(slices).sum(dim=0)


def _sketch_of_slice(x: Tensor, start: Tensor, at: int) -> Tensor:
    table = torch.nn.functional.pad(x, (0, -x.numel() % SKETCH_SIZE)).view(-1, SKETCH_SIZE)
    words = mix64(start + _GOLDEN * torch.arange(at // 64, (at + table.numel()) // 64, device=x.device))
    bits = words.view(torch.uint8).unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=x.device) & 1
    return torch.where(bits.view_as(table) == 1, -table, table).sum(dim=0).double()
