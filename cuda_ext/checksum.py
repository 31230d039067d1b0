"""The ops that tell whether messages arrived as they were sent."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference_checksum
from mqgrad.cuda_ext.reference_checksum import CHECKSUM_BYTES


def write_checksums_(
    messages: Tensor, lengths: Sequence[int], salt: int = 0, *, covered: Sequence[int] | None = None
) -> None:
    """Write the checksum of each message, 8 bytes, to its end.

    It sees every change of up to four bytes side by side in what it covers, and misses few others (Note [Checksum] in
    csrc/checksum.h); it is no signature.

    Args:
        messages: contiguous uint8 [sum of lengths], one behind the other, each with 8 bytes of room at its end.
        lengths: bytes of each, checksum included.
        salt: any 64-bit integer, on which the checksum depends.
        covered: how many bytes of each, from its first one, the checksum is of: at most all that precede it, the
            default.

    Raises:
        TypeError: the messages are not uint8.
        ValueError: a length is below 8, they are not those of the messages, a covered part does not fit, or the
            messages are not contiguous.
    """
    parts = _covered_parts(messages, lengths, covered)
    if not messages.is_contiguous():
        raise ValueError("messages are written in place and must be contiguous")
    library.note_written(messages)
    _kernels(messages.device).write_checksums_(messages, list(lengths), parts, checks.as_int64(salt, "salt"))


def wrong_checksums(
    messages: Tensor, lengths: Sequence[int], salt: int = 0, *, covered: Sequence[int] | None = None
) -> Tensor:
    """Whether each message has another checksum than `write_checksums_` gives it, bool [number of messages].

    The arguments and the errors are those of `write_checksums_`.
    """
    parts = _covered_parts(messages, lengths, covered)
    return _kernels(messages.device).wrong_checksums(
        messages.contiguous(), list(lengths), parts, checks.as_int64(salt, "salt")
    )


def _kernels(device: torch.device) -> Any:
    """There is no CUDA kernel: who asks on a GPU whether a message is right has to wait for it anyway."""
    return reference_checksum if device.type == "cuda" else library.kernels(device, reference_checksum)


def _covered_parts(messages: Tensor, lengths: Sequence[int], covered: Sequence[int] | None) -> list[int]:
    if min(lengths, default=CHECKSUM_BYTES) < CHECKSUM_BYTES:
        raise ValueError(
            f"a message has at least {CHECKSUM_BYTES} bytes, its checksum; got lengths {list(lengths)}"
        )
    checks.require_bytes("messages", messages, (sum(lengths),))
    most = [length - CHECKSUM_BYTES for length in lengths]
    parts = most if covered is None else list(covered)
    if len(parts) != len(most) or min(parts, default=0) < 0 or any(map(operator.gt, parts, most)):
        raise ValueError(f"covered must be of messages with {most} bytes before their checksums, got {parts}")
    return parts


if library.IMPLEMENTATION == "extension":
    library.fake_writers("write_checksums_")

    @torch.library.register_fake("mqgrad::wrong_checksums")
    def _(messages: Tensor, lengths: Sequence[int], covered: Sequence[int], salt: int) -> Tensor:
        return messages.new_empty(len(lengths), dtype=torch.bool)
