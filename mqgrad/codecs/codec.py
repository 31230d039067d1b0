"""Gradients to bytes and back at any width, behind one small object."""

import dataclasses
from typing import Literal

import torch

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Vector, checks, whole
from mqgrad.cuda_ext.scattered import readable

from ..widths import Width, check_width
from .vector_codec import Feedback, VectorCodec, placed, through

Rounding = Literal["nearest", "stochastic"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec(VectorCodec):
    """How a flat vector is coded. All ranks of a collective must use equal codecs.

    Below one bit the largest magnitudes of the whole vector are sent, whatever bucket size and rounding are;
    widths 1-8 are quantized and packed by the extension, 16 is bfloat16 and 32 is float32.
    """

    bucket_size: int = 512
    """Elements that share one fp32 scale: 1/16 bit an element."""
    rounding: Rounding = "nearest"
    """``nearest`` is contractive and needs error feedback; ``stochastic`` is unbiased and noisier."""

    def __post_init__(self) -> None:
        if not 8 <= self.bucket_size <= 65536 or self.bucket_size % 8:
            raise ValueError(f"bucket_size {self.bucket_size!r} must be a multiple of 8 in 8..65536")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"rounding {self.rounding!r} must be 'nearest' or 'stochastic'")

    def payload_bytes(self, numel: int, bits: Width) -> int:
        """Bytes that ``numel`` elements take at ``bits``, scales included."""
        if check_width(bits) < 1:
            return cuda_ext.sparse_bytes(numel, _elements_per_bit(bits))
        if bits >= 16:
            return numel * int(bits) // 8
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
        """Code a floating vector [N], in one tensor or scattered, as a uint8 payload [P].

        Args:
            seed: of stochastic rounding; the same seed gives the same bytes.
            bucket_ids: int64 [ceil(N / bucket_size)], the identity of each scale bucket in the random
                stream, so that randomness follows a bucket wherever it lies in ``x``.
            out: contiguous uint8 [P], to be written and returned. Without it, a payload of 32 bits may be ``x``.
        """
        if check_width(bits) < 1:
            return placed(cuda_ext.sparse_encode(whole(x), _elements_per_bit(bits), **through(feedback)), out)
        if bits < 16:
            code = (int(bits), self.bucket_size, self.rounding == "stochastic", seed, bucket_ids)
            return cuda_ext.encode(x, *code, **through(feedback), out=out)
        if bits == 16:
            return cuda_ext.encode_bfloat16(x, **through(feedback), out=out)
        values = _floats_of(x)
        sent = values if feedback is None else _with_feedback(values, feedback)
        return placed(sent.view(torch.uint8), out)

    def repeats_padding(self, bits: Width) -> bool:
        """At 1 bit, which has no zero: it would be noise as large as the scale, or, to nearest, move the scale."""
        return bits == 1

    def is_contractive(self, bits: Width) -> bool:
        """Whether ‖Q(x) − x‖ < ‖x‖ always, so that plain error feedback is stable."""
        return self.rounding == "nearest" or bits >= 16 or bits < 1

    def decode(self, payload: torch.Tensor, numel: int, bits: Width) -> torch.Tensor:
        """Decode a uint8 payload to float32 [numel].

        Raises:
            TypeError: the payload is not uint8.
            ValueError: it is not a vector of exactly the length of ``numel`` elements.
        """
        if check_width(bits) < 1:
            return cuda_ext.sparse_decode(payload, numel, _elements_per_bit(bits))
        if bits < 16:
            return cuda_ext.decode(payload, numel, int(bits), self.bucket_size)
        if bits == 16:
            return cuda_ext.decode_bfloat16(payload, numel)
        return _floats(payload, numel)

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
        """Encode the mean of payloads [W, P]; 1-16 bits in one pass."""
        if check_width(bits) == 16:
            return cuda_ext.reduce_encode_bfloat16(payloads, numel, **through(feedback), out=out)
        if 1 <= bits <= 8:
            code = (int(bits), self.bucket_size, self.rounding == "stochastic", seed, bucket_ids)
            return cuda_ext.reduce_encode(payloads, numel, *code, **through(feedback), out=out)
        return super().encode_mean(payloads, numel, bits, seed, bucket_ids, feedback=feedback, out=out)

    def decode_into_(self, out: Vector, payload: torch.Tensor, bits: Width) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with a decoded payload."""
        if 1 <= check_width(bits) <= 8:
            cuda_ext.decode_into(out, payload, int(bits), self.bucket_size)
        elif bits == 16:
            cuda_ext.decode_bfloat16_into(out, payload)
        else:
            super().decode_into_(out, payload, bits)

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor, bits: Width) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with the mean of payloads [W, P]; 1-16 bits in one pass."""
        if 1 <= check_width(bits) <= 8:
            cuda_ext.decode_mean_into(out, payloads, int(bits), self.bucket_size)
        elif bits == 16:
            cuda_ext.decode_bfloat16_mean_into(out, payloads)
        else:
            super().decode_mean_into_(out, payloads, bits)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor, bits: Width) -> None:
        """Add a decoded payload to the float32 ``accumulator`` [N]."""
        if check_width(bits) < 1:
            cuda_ext.sparse_decode_add_(accumulator, payload, _elements_per_bit(bits))
        elif bits < 16:
            cuda_ext.decode_add_(accumulator, payload, int(bits), self.bucket_size)
        elif bits == 16:
            cuda_ext.decode_bfloat16_add_(accumulator, payload)
        else:
            accumulator.add_(_floats(payload, accumulator.numel()))


def _elements_per_bit(bits: Width) -> int:
    return round(1 / bits)


def _floats_of(x: Vector) -> torch.Tensor:
    return whole(readable(x)).detach().float()


def _with_feedback(x: torch.Tensor, feedback: Feedback) -> torch.Tensor:
    """What is sent at 32 bits, where all that is owed after it is what the sum rounds off."""
    residual, alpha, beta = feedback
    checks.require_floats("residual", residual, x.numel(), x.device)
    sent = torch.add(x, residual, alpha=alpha)
    owed = torch.sub(x, sent).add_(residual, alpha=beta)
    residual.copy_(torch.where(owed.isfinite(), owed, residual))
    return sent


def _floats(payload: torch.Tensor, numel: int) -> torch.Tensor:
    checks.require_payload(payload, 4 * numel)
    payload = payload.contiguous()
    aligned = payload if payload.storage_offset() % 4 == 0 else payload.clone()  # as part of a message
    return aligned.view(torch.float32)
