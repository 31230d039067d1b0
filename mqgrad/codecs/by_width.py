"""Codecs that are another one at each width."""

import abc

import torch

from mqgrad.cuda_ext import Vector

from ..widths import Width
from .vector_codec import Feedback, VectorCodec


class ByWidth(VectorCodec):
    """Does everything as the codec of the width does."""

    __slots__ = ()

    @abc.abstractmethod
    def at(self, bits: Width) -> VectorCodec:
        """The codec of a width.

        Raises:
            ValueError: for an unknown width.
        """

    def payload_bytes(self, numel: int, bits: Width) -> int:
        return self.at(bits).payload_bytes(numel, bits)

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
        return self.at(bits).encode(x, bits, seed, bucket_ids, feedback=feedback, out=out)

    def codes_parts(self, bits: Width, device: torch.device) -> bool:
        return self.at(bits).codes_parts(bits, device)

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
        self.at(bits).encode_parts(x, stride, bits, seed, bucket_ids, feedback=feedback, out=out)

    def decode_parts_into_(self, out: Vector, payloads: torch.Tensor, stride: int, bits: Width) -> None:
        self.at(bits).decode_parts_into_(out, payloads, stride, bits)

    def repeats_padding(self, bits: Width) -> bool:
        return self.at(bits).repeats_padding(bits)

    def is_contractive(self, bits: Width) -> bool:
        return self.at(bits).is_contractive(bits)

    def decode(self, payload: torch.Tensor, numel: int, bits: Width) -> torch.Tensor:
        return self.at(bits).decode(payload, numel, bits)

    def decode_into_(self, out: Vector, payload: torch.Tensor, bits: Width) -> None:
        self.at(bits).decode_into_(out, payload, bits)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor, bits: Width) -> None:
        self.at(bits).decode_add_(accumulator, payload, bits)

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor, bits: Width) -> None:
        self.at(bits).decode_mean_into_(out, payloads, bits)

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
        return self.at(bits).encode_mean(payloads, numel, bits, seed, bucket_ids, feedback=feedback, out=out)
