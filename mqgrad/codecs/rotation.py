"""Rotated codes: the best scalar codebook of a Gaussian, whatever the gradient looks like."""

import dataclasses
from typing import Any, ClassVar

import torch

from mqgrad import cuda_ext

from ..widths import Width
from .codec import codec_at
from .compiled_codec import CompiledCodec, Ops
from .quantization_noise import ROTATED_GAMMA
from .vector_codec import VectorCodec

ROTATED_WIDTHS = tuple(ROTATED_GAMMA)
FEW_BITS: tuple[Width, ...] = (1, 2, 3)
"""Widths at which the default compressor rotates."""
SMALLEST_BLOCK = 64
"""Fewer elements are not nearly Gaussian after the transform, and their error is not that of the codebook."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RotationCodec(CompiledCodec):
    """A randomized Hadamard transform of every bucket, then Lloyd-Max levels (DRIVE, EDEN; Vargaftik et al.)."""

    ops: ClassVar = Ops(
        payload_bytes=cuda_ext.rotated_bytes,
        encode=cuda_ext.encode_rotated,
        decode=cuda_ext.decode_rotated,
        decode_into=cuda_ext.decode_rotated_into,
        decode_add_=cuda_ext.decode_rotated_add_,
        decode_mean_into=cuda_ext.decode_rotated_mean_into,
        reduce_encode=cuda_ext.reduce_encode_rotated,
        encode_parts=cuda_ext.encode_rotated_parts,
        decode_parts_into=cuda_ext.decode_rotated_parts_into,
    )

    bits: int
    bucket_size: int
    unbiased: bool

    def __post_init__(self) -> None:
        if self.bucket_size < SMALLEST_BLOCK:
            raise ValueError(
                f"bucket_size is made of blocks of {self.bucket_size}, the largest power of two that divides it, and "
                f"rotated codes need at least {SMALLEST_BLOCK}: choose a multiple of {SMALLEST_BLOCK}, or "
                "uniform levels by quantized:rounding=stochastic or qsgd"
            )

    @property
    def settings(self) -> tuple[int, ...]:
        return self.bits, self.bucket_size

    def encode_settings(self, seed: int, bucket_ids: torch.Tensor | None) -> tuple[Any, ...]:
        """All buckets of a vector share the signs, so ``bucket_ids`` play no part."""
        return self.bits, self.bucket_size, self.unbiased, seed

    @property
    def is_contractive(self) -> bool:
        return not self.unbiased


def few_bits_rotated(bits: Width, bucket_size: int) -> VectorCodec:
    """The codec of a width: unbiased rotation at 1-3 bits, and :func:`.codec_at` at all others.

    Few uniform levels are cheaper, and can diverge under momentum SGD: most elements of a gradient are small, so
    that they all weigh the same or vanish, and feedback repays the difference too late. Buckets are rotated in the
    largest blocks of a power of two that make up a scale bucket.

    Raises:
        ValueError: as :func:`.codec_at`; at 1-3 bits also for a bucket size that is no multiple of 64.
    """
    uniform = codec_at(bits, bucket_size=bucket_size)
    if bits not in FEW_BITS:
        return uniform
    return RotationCodec(bits=int(bits), bucket_size=bucket_size & -bucket_size, unbiased=True)
