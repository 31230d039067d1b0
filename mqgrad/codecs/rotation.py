"""Rotated codes: the best scalar codebook of a Gaussian, whatever the gradient looks like."""

import dataclasses
import functools

import torch

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Vector

from ..widths import Width
from .by_width import ByWidth
from .codec import Codec
from .quantization_noise import ROTATED_GAMMA
from .vector_codec import Feedback, VectorCodec, through

ROTATED_WIDTHS = tuple(ROTATED_GAMMA)
FEW_BITS: tuple[Width, ...] = (1, 2, 3)
"""Widths at which the default compressor rotates."""
SMALLEST_BLOCK = 64
"""Fewer elements are not nearly Gaussian after the transform, and their error is not that of the codebook."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RotationCodec(VectorCodec):
    """A randomized Hadamard transform of every bucket, then Lloyd-Max levels (DRIVE, EDEN; Vargaftik et al.)."""

    bucket_size: int
    unbiased: bool

    def __post_init__(self) -> None:
        if self.bucket_size < SMALLEST_BLOCK:
            raise ValueError(
                f"bucket_size is made of blocks of {self.bucket_size}, the largest power of two that divides it, and "
                f"rotated codes need at least {SMALLEST_BLOCK}: choose a multiple of {SMALLEST_BLOCK}, or "
                "uniform levels by quantized:rounding=stochastic or qsgd"
            )

    def payload_bytes(self, numel: int, bits: Width) -> int:
        return cuda_ext.rotated_bytes(numel, int(bits), self.bucket_size)

    def encode(
        self,
        x: Vector,
        bits: Width,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Code a floating vector [N]. All buckets of a vector share the signs, so ``bucket_ids`` play no part."""
        code = (int(bits), self.bucket_size, self.unbiased, seed)
        return cuda_ext.encode_rotated(x, *code, **through(feedback), out=out)

    def codes_parts(self, bits: Width, device: torch.device) -> bool:
        return cuda_ext.runs_on_cpu(device)

    def encode_parts(
        self,
        x: Vector,
        stride: int,
        bits: Width,
        seed: int,
        bucket_ids: torch.Tensor,
        *,
        feedback: Feedback | None,
        out: torch.Tensor,
    ) -> None:
        code = (stride, int(bits), self.bucket_size, self.unbiased, seed)
        cuda_ext.encode_rotated_parts(x, *code, **through(feedback), out=out)

    def encode_mean(
        self,
        payloads: torch.Tensor,
        numel: int,
        bits: Width,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Encode the mean of payloads [W, P], in one pass."""
        code = (int(bits), self.bucket_size, self.unbiased, seed)
        return cuda_ext.reduce_encode_rotated(payloads, numel, *code, **through(feedback), out=out)

    def decode(self, payload: torch.Tensor, numel: int, bits: Width) -> torch.Tensor:
        """Decode to float32 [numel]."""
        return cuda_ext.decode_rotated(payload, numel, int(bits), self.bucket_size)

    def decode_into_(self, out: Vector, payload: torch.Tensor, bits: Width) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with a decoded payload."""
        cuda_ext.decode_rotated_into(out, payload, int(bits), self.bucket_size)

    def decode_parts_into_(self, out: Vector, payloads: torch.Tensor, stride: int, bits: Width) -> None:
        cuda_ext.decode_rotated_parts_into(out, payloads, stride, int(bits), self.bucket_size)

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor, bits: Width) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with the mean of payloads [W, P], in one pass."""
        cuda_ext.decode_rotated_mean_into(out, payloads, int(bits), self.bucket_size)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor, bits: Width) -> None:
        """Add a decoded payload to the float32 ``accumulator`` [N]."""
        cuda_ext.decode_rotated_add_(accumulator, payload, int(bits), self.bucket_size)

    def is_contractive(self, bits: Width) -> bool:
        return not self.unbiased


@functools.lru_cache(typed=True)
def rotation_codec(bucket_size: int, *, unbiased: bool) -> RotationCodec:
    """One for all buckets and iterations."""
    return RotationCodec(bucket_size=bucket_size, unbiased=unbiased)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FewBitsRotated(ByWidth):
    """Another codec, with unbiased rotation in its place at 1-3 bits.

    Few uniform levels are cheaper, and can diverge under momentum SGD: most elements of a gradient are small, so
    that they all weigh the same or vanish, and feedback repays the difference too late.
    """

    others: Codec
    """At all other widths."""

    def __post_init__(self) -> None:
        self.rotation  # noqa: B018 (checks the blocks)

    @property
    def rotation(self) -> RotationCodec:
        """In the largest blocks of a power of two that make up a scale bucket."""
        size = self.others.bucket_size
        return rotation_codec(size & -size, unbiased=True)

    def at(self, bits: Width) -> VectorCodec:
        return self.rotation if bits in FEW_BITS else self.others.at(bits)
