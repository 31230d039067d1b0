"""The public ops of width 16: arguments checked, then the C++ kernel, or the reference on other devices."""

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference_bfloat16, scattered
from mqgrad.cuda_ext.decoding import DecodeOps
from mqgrad.cuda_ext.scattered import Vector

_OPS = DecodeOps(
    name="decode_bfloat16",
    reference=reference_bfloat16,
    payload_bytes=lambda numel: 2 * numel,
    fuses_means=library.has_kernels,
)


def encode_bfloat16(
    x: Vector,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Round to bfloat16, to nearest, halves to even; every NaN becomes 0x7fc0.

    Args:
        x: [N], float32, float64, float16 or bfloat16, or scattered over tensors of these types; what is not float32
            is rounded to it first.
        residual, alpha, beta: error feedback, as in `encode`; where it is not finite, the residual is left as it was,
            element by element.
        out: a contiguous tensor like the result, or a slice of one, to be written and returned.

    Returns:
        The payload, uint8 [2·N], little-endian.

    Raises:
        TypeError: x is not a tensor of a supported type.
        ValueError: x is not a vector, a coefficient not finite, or what is written does not fit or shares memory with
            another argument.
    """
    x, numel = scattered.readable(x), x.numel()
    out = checks.payload_out(out, 2 * numel, x.device)
    checks.require_feedback(residual, alpha, beta, numel, x.device, x=scattered.in_one(x))
    checks.require_apart("out", out, x=scattered.in_one(x), residual=residual)
    library.note_written(out, residual)
    library.kernels(x.device, reference_bfloat16).encode_bfloat16_into(
        out, *scattered.pieces(x), residual, numel, alpha, beta
    )
    return out


def reduce_encode_bfloat16(
    payloads: Tensor,
    numel: int,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Encode the mean of W payloads, reading each once; the sum itself is never written.

    The bytes are those of `decode_bfloat16_add_` for every row in turn to float32 zeros, a division by W, and
    `encode_bfloat16`.

    Args:
        payloads: uint8 [W, 2·numel], W at least 1. Any bytes will do.

    The other arguments, the result and the errors are those of `encode_bfloat16`.
    """
    checks.require_payloads(payloads, 2 * numel)
    payloads = checks.rows_of(payloads)
    out = checks.payload_out(out, 2 * numel, payloads.device)
    checks.require_feedback(residual, alpha, beta, numel, payloads.device, payloads=payloads)
    checks.require_apart("out", out, payloads=payloads, residual=residual)
    library.note_written(out, residual)
    library.kernels(payloads.device, reference_bfloat16).reduce_encode_bfloat16_into(
        out, payloads, residual, numel, alpha, beta
    )
    return out


def decode_bfloat16(payload: Tensor, numel: int) -> Tensor:
    """The values of a payload, float32 [numel]; exact.

    Raises:
        TypeError: payload is not a uint8 tensor.
        ValueError: payload does not have 2·numel bytes.
    """
    return _OPS.decode(payload, numel)


def decode_bfloat16_into(out: Vector, payload: Tensor) -> None:
    """Overwrite a vector with what `decode_bfloat16` returns; as `decode_into`."""
    _OPS.decode_into(out, payload)


def decode_bfloat16_mean_into(out: Vector, payloads: Tensor) -> None:
    """Overwrite a vector with the mean of W payloads; as `decode_mean_into`."""
    _OPS.decode_mean_into(out, payloads)


def decode_bfloat16_add_(accumulator: Tensor, payload: Tensor) -> None:
    """accumulator += decode_bfloat16(payload), for a contiguous float32 [N] on the device of the payload.

    Raises:
        TypeError, ValueError: as `decode_bfloat16`.
    """
    _OPS.decode_add_(accumulator, payload)


if library.IMPLEMENTATION == "extension":
    library.fake_writers(
        "encode_bfloat16_into",
        "reduce_encode_bfloat16_into",
        "decode_bfloat16_into",
        "decode_bfloat16_mean_into",
        "decode_bfloat16_add_",
    )

    @torch.library.register_fake("mqgrad::decode_bfloat16")
    def _(payload: Tensor, numel: int) -> Tensor:
        return payload.new_empty(numel, dtype=torch.float32)
