"""Elements as bfloat16: width 16."""

import dataclasses

import torch

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Vector

from ..widths import Width
from .vector_codec import Feedback, VectorCodec, through


@dataclasses.dataclass(frozen=True, slots=True)
class Bfloat16Codec(VectorCodec):
    """Element by element: neither buckets nor seeds play a part."""

    def payload_bytes(self, numel: int, bits: Width) -> int:
        return 2 * numel

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
        return cuda_ext.encode_bfloat16(x, **through(feedback), out=out)

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
        return cuda_ext.reduce_encode_bfloat16(payloads, numel, **through(feedback), out=out)

    def is_contractive(self, bits: Width) -> bool:
        return True

    def decode(self, payload: torch.Tensor, numel: int, bits: Width) -> torch.Tensor:
        return cuda_ext.decode_bfloat16(payload, numel)

    def decode_into_(self, out: Vector, payload: torch.Tensor, bits: Width) -> None:
        cuda_ext.decode_bfloat16_into(out, payload)

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor, bits: Width) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with the mean of payloads [W, P], in one pass."""
        cuda_ext.decode_bfloat16_mean_into(out, payloads)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor, bits: Width) -> None:
        cuda_ext.decode_bfloat16_add_(accumulator, payload)
