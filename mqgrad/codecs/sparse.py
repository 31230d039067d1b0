"""The largest magnitudes alone: widths below one bit."""

import dataclasses

import torch

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Vector

from ..widths import Width
from .vector_codec import Feedback, VectorCodec, through


@dataclasses.dataclass(frozen=True, slots=True)
class SparseCodec(VectorCodec):
    """Of the whole vector, so that neither buckets nor seeds play a part."""

    def payload_bytes(self, numel: int, bits: Width) -> int:
        return cuda_ext.sparse_bytes(numel, _elements_per_bit(bits))

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
        return cuda_ext.sparse_encode(x, _elements_per_bit(bits), **through(feedback), out=out)

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
        cuda_ext.sparse_encode_parts(x, stride, _elements_per_bit(bits), **through(feedback), out=out)

    def decode_parts_into_(self, out: Vector, payloads: torch.Tensor, stride: int, bits: Width) -> None:
        cuda_ext.sparse_decode_parts_into(out, payloads, stride, _elements_per_bit(bits))

    def is_contractive(self, bits: Width) -> bool:
        return True

    def decode(self, payload: torch.Tensor, numel: int, bits: Width) -> torch.Tensor:
        return cuda_ext.sparse_decode(payload, numel, _elements_per_bit(bits))

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor, bits: Width) -> None:
        cuda_ext.sparse_decode_add_(accumulator, payload, _elements_per_bit(bits))

    def decode_into_(self, out: Vector, payload: torch.Tensor, bits: Width) -> None:
        cuda_ext.sparse_decode_into(out, payload, _elements_per_bit(bits))

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor, bits: Width) -> None:
        cuda_ext.sparse_decode_mean_into(out, payloads, _elements_per_bit(bits))


def _elements_per_bit(bits: Width) -> int:
    return round(1 / bits)
