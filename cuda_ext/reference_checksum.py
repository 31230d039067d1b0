"""Checksums in plain torch: what is right, byte for byte. Note [Checksum] in csrc/checksum.h."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mqgrad.cuda_ext.reference_random import mix64, random_key

CHECKSUM_BYTES = 8


def write_checksums_(messages: Tensor, lengths: Sequence[int], covered: Sequence[int], salt: int) -> None:
    """See `mqgrad.cuda_ext.write_checksums_`."""
    for message, part in zip(messages.split(list(lengths)), covered, strict=True):
        message[-CHECKSUM_BYTES:] = _checksum(message[:part], salt)


def wrong_checksums(messages: Tensor, lengths: Sequence[int], covered: Sequence[int], salt: int) -> Tensor:
    """See `mqgrad.cuda_ext.wrong_checksums`."""
    wrong = [
        (message[-CHECKSUM_BYTES:] != _checksum(message[:part], salt)).any()
        for message, part in zip(messages.split(list(lengths)), covered, strict=True)
    ]
    return torch.stack(wrong) if wrong else messages.new_empty(0, dtype=torch.bool)


def _checksum(payload: Tensor, salt: int) -> Tensor:
    """uint8 [8] of a payload [P]."""
    words = torch.nn.functional.pad(payload, (0, -payload.numel() % 4)).view(torch.int32).long() & 0xFFFFFFFF
    weights = (2 * torch.arange(len(words), device=payload.device) + 1) & 0xFFFFFFFF
    start = random_key(salt, torch.tensor(payload.numel(), device=payload.device))
    return mix64((words * weights).sum() + start).view(1).view(torch.uint8)
