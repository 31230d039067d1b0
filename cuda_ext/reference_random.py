"""Note [Random numbers] of csrc/random_words.h, in plain torch."""

import torch
from torch import Tensor

DITHER_BITS = 15


def dither(seed: int, bucket_ids: Tensor, length: int) -> Tensor:
    """Note [Random numbers]: int64 [B, length] in [0, 2^15), a function of (seed, bucket id, position)."""
    element_L = torch.arange(length, device=bucket_ids.device)
    word_BL = random_words(seed, bucket_ids, element_L // 2)
    return (word_BL >> 16 * (element_L % 2) & 0xFFFF) >> 16 - DITHER_BITS


def random_words(seed: int, bucket_ids: Tensor, index_L: Tensor) -> Tensor:
    """Note [Random numbers]: words of 32 bits as int64 [B, L], at the given places of each bucket's sequence."""
    key_B = random_key(seed, bucket_ids)
    start_B1, stride_B1 = (key_B & 0xFFFFFFFF)[:, None], _shift_right(key_B, 32)[:, None] | 1
    return _mix32((start_B1 + index_L * stride_B1) & 0xFFFFFFFF)


def random_key(seed: int, bucket_ids: Tensor) -> Tensor:
    """Note [Random numbers]: 64 bits as int64, like the identities."""
    start = torch.full((), seed, dtype=torch.int64, device=bucket_ids.device)
    return mix64(mix64(start + _signed(0x9E3779B97F4A7C15)) + bucket_ids)


def mix64(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _mix32(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    return x ^ (x >> 15)


def _shift_right(x: Tensor, count: int) -> Tensor:
    """Of int64 as unsigned; int64 products and sums already wrap like unsigned ones."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
