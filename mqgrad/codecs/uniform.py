"""Uniform levels up to a scale of each bucket: 1-8 bits."""

import dataclasses
from typing import Any, ClassVar

import torch

from mqgrad import cuda_ext

from .compiled_codec import CompiledCodec, Ops


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UniformCodec(CompiledCodec):
    """Quantized and packed by the extension."""

    ops: ClassVar = Ops(
        payload_bytes=cuda_ext.payload_bytes,
        encode=cuda_ext.encode,
        decode=cuda_ext.decode,
        decode_into=cuda_ext.decode_into,
        decode_add_=cuda_ext.decode_add_,
        decode_mean_into=cuda_ext.decode_mean_into,
        reduce_encode=cuda_ext.reduce_encode,
        encode_parts=cuda_ext.encode_parts,
        decode_parts_into=cuda_ext.decode_parts_into,
    )

    bits: int
    bucket_size: int
    stochastic: bool

    @property
    def settings(self) -> tuple[int, ...]:
        return self.bits, self.bucket_size

    def encode_settings(self, seed: int, bucket_ids: torch.Tensor | None) -> tuple[Any, ...]:
        return self.bits, self.bucket_size, self.stochastic, seed, bucket_ids

    @property
    def repeats_padding(self) -> bool:
        """At 1 bit, which has no zero: it would be noise as large as the scale, or, to nearest, move the scale."""
        return self.bits == 1

    @property
    def is_contractive(self) -> bool:
        return not self.stochastic
