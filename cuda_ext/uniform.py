"""The public ops of uniform levels: arguments checked, then the C++ kernel, or the reference on other devices."""

from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference, scattered
from mqgrad.cuda_ext.scattered import Vector


def payload_bytes(numel: int, bits: int, bucket_size: int) -> int:
    """Length of what `encode` returns: 4 bytes of scale a bucket, then `bits` bits an element.

    Raises:
        ValueError: bits outside 1..8, bucket_size below 1 or numel negative.
    """
    checks.require_layout(numel, bits, bucket_size)
    return checks.payload_bytes(numel, bits, bucket_size)


def encode(
    x: Vector,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    bucket_ids: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Quantize to `bits` bits an element and pack.

    Stochastic rounding is QSGD's (Alistarh et al. 2017, eq. 3.1) with the maximum norm in buckets: unbiased. Nearest
    rounding is contractive, ‖Q(x) − x‖ < ‖x‖, and meant for error feedback. The same arguments give the same bytes on
    any machine and any number of threads (but for torch.set_flush_denormal, which is of one thread). A NaN or
    infinity makes its whole bucket decode to NaN.

    Args:
        x: [N], float32, float64, float16 or bfloat16, or scattered over tensors of these types; the mathematics is
            done in float32.
        bits: 1..8.
        bucket_size: elements that share a scale, at least 1.
        stochastic: round at random instead of to the nearest level.
        seed: any 64-bit integer, used by stochastic rounding only.
        bucket_ids: [B] int64 on the device of x: bucket k draws the random numbers of bucket_ids[k] instead of k's.
        out: a contiguous tensor like the result, or a slice of one, to be written and returned.

    Returns:
        The payload, uint8 [payload_bytes(N, bits, bucket_size)].

    Raises:
        TypeError: x is not a tensor of a supported type, or an argument is not of its type.
        ValueError: a wrong shape, device or value, or an argument that is written shares memory with another.
    """
    x = scattered.readable(x)
    checks.require_layout(x.numel(), bits, bucket_size)
    checks.require_bucket_ids(bucket_ids, x.numel(), x.device, bucket_size)
    seed = checks.as_int64(seed)
    if out is None and isinstance(x, Tensor):
        return library.kernels(x.device, reference).encode(x, bits, bucket_size, stochastic, seed, bucket_ids)
    return _encode_to(out, x, None, bits, bucket_size, stochastic, seed, 0.0, 0.0, bucket_ids)


def encode_with_feedback(
    x: Vector,
    residual: Tensor,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    alpha: float,
    beta: float,
    bucket_ids: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Encode v = x + alpha·h and keep the error in place, h ← beta·h + (x − Q(v)).

    This is ECQ-SGD (Wu et al. 2018): h is what earlier payloads owe. alpha = beta = 1 is textbook error feedback.
    In a bucket that is not finite, h is left as it was.

    Args:
        residual: h, float32 [N], contiguous, on the device of x; updated.
        alpha: how much of the residual is sent along.
        beta: how much of the residual is remembered.

    The other arguments, the result and the errors are those of `encode`.
    """
    x = scattered.readable(x)
    checks.require_layout(x.numel(), bits, bucket_size)
    checks.require_bucket_ids(bucket_ids, x.numel(), x.device, bucket_size)
    checks.require_floats("residual", residual, x.numel(), x.device)
    checks.require_coefficients(alpha, beta)
    scattered.require_apart("residual", residual, x, bucket_ids=bucket_ids)
    settings = (bits, bucket_size, stochastic, checks.as_int64(seed), alpha, beta, bucket_ids)
    library.note_written(residual)
    if out is None and isinstance(x, Tensor):
        return library.kernels(x.device, reference).encode_with_feedback(x, residual, *settings)
    return _encode_to(out, x, residual, *settings)


def _encode_to(
    out: Tensor | None,
    x: Vector,
    residual: Tensor | None,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    alpha: float,
    beta: float,
    bucket_ids: Tensor | None,
) -> Tensor:
    """Encode to a payload that is given, or to a new one, what the op can read."""
    out = checks.payload_out(out, payload_bytes(x.numel(), bits, bucket_size), x.device)
    scattered.require_apart("out", out, x, residual=residual, bucket_ids=bucket_ids)
    settings = (bits, bucket_size, stochastic, seed)
    if library.has_kernels(x.device):
        tensors, offsets = scattered.pieces(x)
        library.note_written(out)
        torch.ops.mqgrad.encode_into(
            out, tensors, offsets, residual, x.numel(), *settings, alpha, beta, bucket_ids
        )
        return out
    if residual is None:
        return out.copy_(encode(x, *settings, bucket_ids))
    return out.copy_(encode_with_feedback(x, residual, *settings, alpha, beta, bucket_ids))


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

    The bytes are those of `decode_add_` for every row in turn to float32 zeros, a division by W, and `encode`, or
    `encode_with_feedback` if there is a residual; the sum itself is never written.

    Args:
        payloads: uint8 [W, payload_bytes(numel, bits, bucket_size)], W at least 1. Untrusted, as in `decode`.
        residual: float32 [numel], contiguous, on the device of payloads; updated.

    The other arguments, the result and the errors are those of `encode_with_feedback`.
    """
    checks.require_payloads(payloads, payload_bytes(numel, bits, bucket_size))
    checks.require_bucket_ids(bucket_ids, numel, payloads.device, bucket_size)
    payloads = checks.rows_of(payloads)
    if residual is not None:
        checks.require_floats("residual", residual, numel, payloads.device)
        checks.require_apart("residual", residual, payloads=payloads, bucket_ids=bucket_ids)
    checks.require_coefficients(alpha, beta)
    settings = (bits, bucket_size, stochastic, checks.as_int64(seed))
    if library.has_kernels(payloads.device):
        out = checks.payload_out(out, payloads.shape[1], payloads.device)
        checks.require_apart("out", out, payloads=payloads, residual=residual, bucket_ids=bucket_ids)
        library.note_written(out, residual)
        torch.ops.mqgrad.reduce_encode_into(
            out, payloads, residual, numel, *settings, alpha, beta, bucket_ids
        )
        return out
    mean = reference.mean_of(payloads, numel, lambda sums, row: decode_add_(sums, row, bits, bucket_size))
    if residual is None:
        return encode(mean, *settings, bucket_ids, out=out)
    return encode_with_feedback(mean, residual, *settings, alpha, beta, bucket_ids, out=out)


def decode(payload: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    """Decode what `encode` returned for the same numel, bits and bucket_size.

    Any bytes of the right length decode to something and harm nothing; a scale that is not finite decodes to NaN.

    Returns:
        float32 [numel].

    Raises:
        TypeError: payload is not a uint8 tensor.
        ValueError: payload has the wrong length, or an argument is out of range.
    """
    checks.require_payload(payload, payload_bytes(numel, bits, bucket_size))
    payload = payload.contiguous()
    return library.kernels(payload.device, reference).decode(payload, numel, bits, bucket_size)


def decode_into(out: Vector, payload: Tensor, bits: int, bucket_size: int) -> None:
    """Overwrite a vector with what `decode` returns, without the tensor in between.

    Args:
        out: contiguous float32 [N] on the device of payload, or scattered over tensors of the types of `encode`.

    Raises:
        TypeError: payload is not a uint8 tensor, or out of no supported type.
        ValueError: payload has the wrong length, or an argument is out of range, or out shares memory with payload.
    """
    numel = out.numel()
    checks.require_payload(payload, payload_bytes(numel, bits, bucket_size))
    payload = payload.contiguous()
    if not scattered.is_writable(out, payload) or not library.has_kernels(payload.device):
        out.copy_(decode(payload, numel, bits, bucket_size))
        return
    tensors, offsets = scattered.pieces(out)
    library.note_written(*tensors)
    torch.ops.mqgrad.decode_into(tensors, offsets, payload, numel, bits, bucket_size)


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
    numel = out.numel()
    checks.require_payloads(payloads, payload_bytes(numel, bits, bucket_size))
    payloads = checks.rows_of(payloads)
    if not scattered.is_writable(out, payloads):
        mean = torch.empty(numel, dtype=torch.float32, device=payloads.device)
        decode_mean_into(mean, payloads, bits, bucket_size)
        out.copy_(mean)
    elif library.has_kernels(payloads.device):
        tensors, offsets = scattered.pieces(out)
        library.note_written(*tensors)
        torch.ops.mqgrad.decode_mean_into(tensors, offsets, payloads, numel, bits, bucket_size)
    else:
        out.copy_(
            reference.mean_of(payloads, numel, lambda sums, row: decode_add_(sums, row, bits, bucket_size))
        )


def decode_add_(accumulator: Tensor, payload: Tensor, bits: int, bucket_size: int) -> None:
    """accumulator += decode(payload), without the tensor in between.

    Args:
        accumulator: float32 [N], contiguous, on the device of payload; updated.

    Raises:
        TypeError: payload is not uint8, or accumulator not float32.
        ValueError: a wrong shape, length or device, or the two share memory.
    """
    checks.require_payload(payload, payload_bytes(accumulator.numel(), bits, bucket_size))
    checks.require_floats("accumulator", accumulator, accumulator.numel(), payload.device)
    payload = payload.contiguous()
    checks.require_apart("accumulator", accumulator, payload=payload)
    library.note_written(accumulator)
    library.kernels(payload.device, reference).decode_add_(accumulator, payload, bits, bucket_size)


if library.IMPLEMENTATION == "extension":
    library.fake_writers(
        "encode_into", "reduce_encode_into", "decode_into", "decode_mean_into", "decode_add_"
    )

    @torch.library.register_fake("mqgrad::encode")
    def _(x: Tensor, bits: int, bucket_size: int, *_: Any) -> Tensor:
        return x.new_empty(checks.payload_bytes(x.numel(), bits, bucket_size), dtype=torch.uint8)

    @torch.library.register_fake("mqgrad::encode_with_feedback")
    def _(x: Tensor, residual: Tensor, bits: int, bucket_size: int, *_: Any) -> Tensor:
        return x.new_empty(checks.payload_bytes(x.numel(), bits, bucket_size), dtype=torch.uint8)

    @torch.library.register_fake("mqgrad::decode")
    def _(payload: Tensor, numel: int, *_: Any) -> Tensor:
        return payload.new_empty(numel, dtype=torch.float32)
