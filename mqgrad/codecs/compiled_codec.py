"""What the codecs of the extension's ops have in common."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Vector

from .vector_codec import Feedback, VectorCodec, through


class Ops(NamedTuple):
    """The functions of :mod:`mqgrad.cuda_ext` for one code; what a code has no op for is None."""

    payload_bytes: Callable[..., int]
    encode: Callable[..., torch.Tensor]
    decode: Callable[..., torch.Tensor]
    decode_into: Callable[..., None]
    decode_add_: Callable[..., None]
    decode_mean_into: Callable[..., None]
    reduce_encode: Callable[..., torch.Tensor] | None = None
    encode_parts: Callable[..., None] | None = None
    decode_parts_into: Callable[..., None] | None = None


class CompiledCodec(VectorCodec):
    """By ops, which check their arguments; all but those of :meth:`encode_parts` and :meth:`decode_parts_into_` run
    on every device."""

    __slots__ = ()

    ops: ClassVar[Ops]

    @property
    @abc.abstractmethod
    def settings(self) -> tuple[int, ...]:
        """The last arguments of the ops that decode."""

    def encode_settings(self, seed: int, bucket_ids: torch.Tensor | None) -> tuple[Any, ...]:
        """The last arguments, before feedback, of the ops that encode; without those that play no part."""
        return self.settings

    def payload_bytes(self, numel: int) -> int:
        return self.ops.payload_bytes(numel, *self.settings)

    def encode(
        self,
        x: Vector,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.ops.encode(x, *self.encode_settings(seed, bucket_ids), **through(feedback), out=out)

    def encode_mean(
        self,
        payloads: torch.Tensor,
        numel: int,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Encode the mean of payloads [W, P], in one pass where there is an op for it."""
        if self.ops.reduce_encode is None:
            return super().encode_mean(payloads, numel, seed, bucket_ids, feedback=feedback, out=out)
        settings = self.encode_settings(seed, bucket_ids)
        return self.ops.reduce_encode(payloads, numel, *settings, **through(feedback), out=out)

    def codes_parts(self, device: torch.device) -> bool:
        return self.ops.encode_parts is not None and cuda_ext.has_cpu_ops(device)

    def encode_parts(
        self,
        x: Vector,
        stride: int,
        seed: int,
        bucket_ids: torch.Tensor,
        *,
        feedback: Feedback | None,
        out: torch.Tensor,
    ) -> None:
        if self.ops.encode_parts is None:
            super().encode_parts(x, stride, seed, bucket_ids, feedback=feedback, out=out)
        else:
            settings = self.encode_settings(seed, bucket_ids)
            self.ops.encode_parts(x, stride, *settings, **through(feedback), out=out)

    def decode(self, payload: torch.Tensor, numel: int) -> torch.Tensor:
        return self.ops.decode(payload, numel, *self.settings)

    def decode_into_(self, out: Vector, payload: torch.Tensor) -> None:
        self.ops.decode_into(out, payload, *self.settings)

    def decode_parts_into_(self, out: Vector, payloads: torch.Tensor, stride: int) -> None:
        if self.ops.decode_parts_into is None:
            super().decode_parts_into_(out, payloads, stride)
        else:
            self.ops.decode_parts_into(out, payloads, stride, *self.settings)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor) -> None:
        self.ops.decode_add_(accumulator, payload, *self.settings)

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor) -> None:
        self.ops.decode_mean_into(out, payloads, *self.settings)
