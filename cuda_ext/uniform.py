"""The public ops of uniform levels: arguments checked, then the C++ kernel, or the reference on other devices."""

from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference, scattered
from mqgrad.cuda_ext.decoding import DecodeOps
from mqgrad.cuda_ext.scattered import Vector


def payload_bytes(numel: int, bits: int, bucket_size: int) -> int:
    """Length of what `encode` returns: 4 bytes of scale a bucket, then `bits` bits an element.

    Raises:
        ValueError: bits outside 1..8, bucket_size below 1 or numel negative.
    """
    checks.require_layout(numel, bits, bucket_size)
    return checks.payload_bytes(numel, bits, bucket_size)


_OPS = DecodeOps(
    name="decode",
    reference=reference,
    payload_bytes=payload_bytes,
    fuses_means=lambda device, bits, bucket_size: library.has_kernels(device),
)


def encode(
    x: Vector,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    bucket_ids: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Quantize to `bits` bits an element and pack.

    Stochastic rounding is QSGD's (Alistarh et al. 2017, eq. 3.1) with the maximum norm in buckets: unbiased. Nearest
    rounding is contractive, ‖Q(x) − x‖ < ‖x‖, and meant for error feedback. The same arguments give the same bytes on
    any machine and any number of threads (but for torch.set_flush_denormal, which is of one thread). A NaN or
    infinity makes its whole bucket decode to NaN.

    With a residual h, which is what earlier payloads owe, v = x + alpha·h is encoded and the error kept in place,
    h ← beta·h + (x − Q(v)): this is ECQ-SGD (Wu et al. 2018). alpha = beta = 1 is textbook error feedback.

    Args:
        x: [N], float32, float64, float16 or bfloat16, or scattered over tensors of these types; the mathematics is
            done in float32.
        bits: 1..8.
        bucket_size: elements that share a scale, at least 1.
        stochastic: round at random instead of to the nearest level.
        seed: any 64-bit integer, used by stochastic rounding only.
        bucket_ids: [B] int64 on the device of x: bucket k draws the random numbers of bucket_ids[k] instead of k's.
        residual: h, float32 [N], contiguous, on the device of x; updated. In a bucket that is not finite it is left
            as it was.
        alpha: how much of the residual is sent along.
        beta: how much of the residual is remembered.
        out: a contiguous tensor like the result, or a slice of one, to be written and returned.

    Returns:
        The payload, uint8 [payload_bytes(N, bits, bucket_size)].

    Raises:
        TypeError: x is not a tensor of a supported type, or an argument is not of its type.
        ValueError: a wrong shape, device or value, or an argument that is written shares memory with another.
    """
    x, numel = scattered.readable(x), x.numel()
    out = checks.payload_out(out, payload_bytes(numel, bits, bucket_size), x.device)
    checks.require_bucket_ids(bucket_ids, numel, x.device, bucket_size)
    beside = {"x": scattered.in_one(x), "bucket_ids": bucket_ids}
    checks.require_feedback(residual, alpha, beta, numel, x.device, **beside)
    checks.require_apart("out", out, **beside, residual=residual)
    settings = (bits, bucket_size, stochastic, checks.as_int64(seed), alpha, beta, bucket_ids)
    library.note_written(out, residual)
    library.kernels(x.device, reference).encode_into(out, *scattered.pieces(x), residual, numel, *settings)
    return out


def reduce_encode(
    payloads: Tensor,
    numel: int,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    bucket_ids: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Encode the mean of W payloads of the same numel, bits and bucket_size, reading each once.

    The bytes are those of `decode_add_` for every row in turn to float32 zeros, a division by W, and `encode`; the
    sum itself is never written.

    Args:
        payloads: uint8 [W, payload_bytes(numel, bits, bucket_size)], W at least 1. Untrusted, as in `decode`.

    The other arguments, the result and the errors are those of `encode`.
    """
    checks.require_payloads(payloads, payload_bytes(numel, bits, bucket_size))
    checks.require_bucket_ids(bucket_ids, numel, payloads.device, bucket_size)
    payloads = checks.rows_of(payloads)
    out = checks.payload_out(out, payloads.shape[1], payloads.device)
    beside = {"payloads": payloads, "bucket_ids": bucket_ids}
    checks.require_feedback(residual, alpha, beta, numel, payloads.device, **beside)
    checks.require_apart("out", out, **beside, residual=residual)
    settings = (bits, bucket_size, stochastic, checks.as_int64(seed), alpha, beta, bucket_ids)
    library.note_written(out, residual)
    kernels = library.kernels(payloads.device, reference)
    kernels.reduce_encode_into(out, payloads, residual, numel, *settings)
    return out


def decode(payload: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    """Decode what `encode` returned for the same numel, bits and bucket_size.

    Any bytes of the right length decode to something and harm nothing; a scale that is not finite decodes to NaN.

    Returns:
        float32 [numel].

    Raises:
        TypeError: payload is not a uint8 tensor.
        ValueError: payload has the wrong length, or an argument is out of range.
    """
    return _OPS.decode(payload, numel, bits, bucket_size)


def decode_into(out: Vector, payload: Tensor, bits: int, bucket_size: int) -> None:
    """Overwrite a vector with what `decode` returns, without the tensor in between.

    Args:
        out: contiguous float32 [N] on the device of payload, or scattered over tensors of the types of `encode`.

    Raises:
        TypeError: payload is not a uint8 tensor, or out of no supported type.
        ValueError: payload has the wrong length, or an argument is out of range, or out shares memory with payload.
    """
    _OPS.decode_into(out, payload, bits, bucket_size)


def decode_mean_into(out: Vector, payloads: Tensor, bits: int, bucket_size: int) -> None:
    """Overwrite a vector with the mean of W payloads, reading each once.

    The values are those of `decode_add_` for every row in turn to float32 zeros, and a division by W.

    Args:
        out: as in `decode_into`.
        payloads: uint8 [W, payload_bytes(N, bits, bucket_size)], W at least 1. Untrusted, as in `decode`.

    Raises:
        TypeError: payloads are not uint8, or out of no supported type.
        ValueError: payloads have the wrong length, or an argument is out of range, or out shares memory with them.
    """
    _OPS.decode_mean_into(out, payloads, bits, bucket_size)


def decode_add_(accumulator: Tensor, payload: Tensor, bits: int, bucket_size: int) -> None:
    """accumulator += decode(payload), without the tensor in between.

    Args:
        accumulator: float32 [N], contiguous, on the device of payload; updated.

    Raises:
        TypeError: payload is not uint8, or accumulator not float32.
        ValueError: a wrong shape, length or device, or the two share memory.
    """
    _OPS.decode_add_(accumulator, payload, bits, bucket_size)


if library.IMPLEMENTATION == "extension":
    library.fake_writers(
        "encode_into", "reduce_encode_into", "decode_into", "decode_mean_into", "decode_add_"
    )

    @torch.library.register_fake("mqgrad::decode")
    def _(payload: Tensor, numel: int, *_: Any) -> Tensor:
        return payload.new_empty(numel, dtype=torch.float32)
