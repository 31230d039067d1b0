"""Uniform levels up to a scale of each bucket: 1-8 bits."""

import dataclasses

import torch

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Vector

from ..widths import Width
from .vector_codec import Feedback, VectorCodec, through


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UniformCodec(VectorCodec):
    """Quantized and packed by the extension."""

    bucket_size: int
    stochastic: bool

    def payload_bytes(self, numel: int, bits: Width) -> int:
        return cuda_ext.payload_bytes(numel, int(bits), self.bucket_size)

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
        code = (int(bits), self.bucket_size, self.stochastic, seed, bucket_ids)
        return cuda_ext.encode(x, *code, **through(feedback), out=out)

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
        code = (stride, int(bits), self.bucket_size, self.stochastic, seed, bucket_ids)
        cuda_ext.encode_parts(x, *code, **through(feedback), out=out)

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
        code = (int(bits), self.bucket_size, self.stochastic, seed, bucket_ids)
        return cuda_ext.reduce_encode(payloads, numel, *code, **through(feedback), out=out)

    def repeats_padding(self, bits: Width) -> bool:
        """At 1 bit, which has no zero: it would be noise as large as the scale, or, to nearest, move the scale."""
        return bits == 1

    def is_contractive(self, bits: Width) -> bool:
        return not self.stochastic

    def decode(self, payload: torch.Tensor, numel: int, bits: Width) -> torch.Tensor:
        return cuda_ext.decode(payload, numel, int(bits), self.bucket_size)

    def decode_into_(self, out: Vector, payload: torch.Tensor, bits: Width) -> None:
        cuda_ext.decode_into(out, payload, int(bits), self.bucket_size)

    def decode_parts_into_(self, out: Vector, payloads: torch.Tensor, stride: int, bits: Width) -> None:
        cuda_ext.decode_parts_into(out, payloads, stride, int(bits), self.bucket_size)

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor, bits: Width) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with the mean of payloads [W, P], in one pass."""
        cuda_ext.decode_mean_into(out, payloads, int(bits), self.bucket_size)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor, bits: Width) -> None:
        cuda_ext.decode_add_(accumulator, payload, int(bits), self.bucket_size)
