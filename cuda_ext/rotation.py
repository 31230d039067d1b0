"""The public ops of the rotated codes: arguments checked, then the C++ kernel or the reference."""

import operator
from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference, reference_rotation, scattered
from mqgrad.cuda_ext.decoding import DecodeOps
from mqgrad.cuda_ext.scattered import Vector

MAX_BITS = 4
MAX_BUCKET_SIZE = 65536
_CUDA_BUCKET_SIZE = 512  # that a warp holds in registers: kPieceBucket of csrc/cuda_rotation.h


def rotated_bytes(numel: int, bits: int, bucket_size: int) -> int:
    """Length of what `encode_rotated` returns: 8 bytes of seed, then whole buckets of a scale and their codes.

    Raises:
        ValueError: bits outside 1..4, a bucket_size that is no power of two in 8..65536, or numel negative.
    """
    checks.require_layout(numel, bits, bucket_size)
    if bits > MAX_BITS:
        raise ValueError(f"bits must be in 1..{MAX_BITS}, got {bits}")
    if not 8 <= bucket_size <= MAX_BUCKET_SIZE or bucket_size & (bucket_size - 1):
        raise ValueError(f"bucket_size must be a power of two in 8..{MAX_BUCKET_SIZE}, got {bucket_size}")
    numel, bits, bucket_size = map(operator.index, (numel, bits, bucket_size))
    num_buckets = -(-numel // bucket_size)
    return reference_rotation.SEED_BYTES + num_buckets * (4 + bucket_size // 8 * bits)


def _has_fused_steps(device: torch.device, bucket_size: int) -> bool:
    """Whether compiled ops fuse feedback and means for this device and bucket size. (The raw ops raise where they do
    not.)"""
    on_cuda = device.type == "cuda" and bucket_size == _CUDA_BUCKET_SIZE and library.has_kernels(device)
    return on_cuda or library.has_cpu_ops(device)


_OPS = DecodeOps(
    name="decode_rotated",
    reference=reference_rotation,
    payload_bytes=rotated_bytes,
    fuses_means=lambda device, bits, bucket_size: _has_fused_steps(device, bucket_size),
)


def encode_rotated(
    x: Vector,
    bits: int,
    bucket_size: int,
    unbiased: bool,
    seed: int,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Rotate every bucket at random and code it with the best scalar codebook of a Gaussian (DRIVE and EDEN).

    DRIVE: Vargaftik et al., NeurIPS 2021; EDEN: ICML 2022. Note [Rotation] in csrc/rotation.h has the formulas.
    A bucket with a NaN or infinity, or whose transform overflows float32, decodes to NaN as a whole.

    Args:
        x: [N], float32, float64, float16 or bfloat16, or scattered over tensors of these types; the mathematics is
            done in float32.
        bits: 1..4.
        bucket_size: elements that are rotated together and share a scale, a power of two.
        unbiased: scale for E⟨decoded, x⟩ = ‖x‖² over the seeds, and in dense buckets E[decoded] = x, with NMSE of
            about 0.571, 0.133, 0.036, 0.0096 at 1-4 bits, instead of for the least error (0.363, 0.117, 0.0345,
            0.0095), which is contractive. In a bucket with a few non-zero elements, or a few that dwarf the rest,
            E[decoded] is not x: by half of ‖x‖ at 1 bit with two of them, by 5 % with ten.
        seed: of the random signs, any 64-bit integer; it travels in the payload.
        residual, alpha, beta: error feedback, as in `encode`, in the same pass on the CPU, and on CUDA in buckets of
            512. An element of the residual stays as it was where its new value would not be finite, as in a bucket
            that decodes to NaN.
        out: a contiguous tensor like the result, or a slice of one, to be written and returned.

    Returns:
        uint8 [rotated_bytes(N, bits, bucket_size)].

    Raises:
        TypeError: x is not a tensor of a supported type.
        ValueError: a wrong shape or value, or what is written shares memory with another argument.
    """
    x, numel = scattered.readable(x), x.numel()
    out = checks.payload_out(out, rotated_bytes(numel, bits, bucket_size), x.device)
    checks.require_feedback(residual, alpha, beta, numel, x.device, x=scattered.in_one(x))
    checks.require_apart("out", out, x=scattered.in_one(x), residual=residual)
    settings = (bits, bucket_size, unbiased, checks.as_int64(seed))
    library.note_written(out, residual)
    if residual is None or _has_fused_steps(x.device, bucket_size):
        library.kernels(x.device, reference_rotation).encode_rotated_into(
            out, *scattered.pieces(x), residual, numel, *settings, alpha, beta
        )
    else:
        x = scattered.whole(x).detach().float()
        encode_rotated(x + alpha * residual, *settings, out=out)
        reference.keep_error(x, residual, decode_rotated(out, numel, bits, bucket_size), beta)
    return out


def reduce_encode_rotated(
    payloads: Tensor,
    numel: int,
    bits: int,
    bucket_size: int,
    unbiased: bool,
    seed: int,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Encode the mean of W payloads of the same numel, bits and bucket_size, reading each once.

    The bytes are those of `decode_rotated_add_` for every row in turn to float32 zeros, a division by W, and
    `encode_rotated`.

    Args:
        payloads: uint8 [W, rotated_bytes(numel, bits, bucket_size)], W at least 1. Untrusted, as in `decode_rotated`.
            Each has a seed of its own.

    The other arguments, the result and the errors are those of `encode_rotated`.
    """
    checks.require_payloads(payloads, rotated_bytes(numel, bits, bucket_size))
    payloads = checks.rows_of(payloads)
    out = checks.payload_out(out, payloads.shape[1], payloads.device)
    checks.require_feedback(residual, alpha, beta, numel, payloads.device, payloads=payloads)
    checks.require_apart("out", out, payloads=payloads, residual=residual)
    settings = (bits, bucket_size, unbiased, checks.as_int64(seed))
    library.note_written(out, residual)
    if _has_fused_steps(payloads.device, bucket_size):
        torch.ops.mqgrad.reduce_encode_rotated_into(out, payloads, residual, numel, *settings, alpha, beta)
        return out
    mean = _OPS.mean(payloads, numel, bits, bucket_size)
    return encode_rotated(mean, *settings, residual=residual, alpha=alpha, beta=beta, out=out)


def decode_rotated(payload: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    """Decode what `encode_rotated` returned for the same numel, bits and bucket_size: float32 [numel].

    Any bytes of the right length decode to something and harm nothing.

    Raises:
        TypeError: payload is not a uint8 tensor.
        ValueError: payload has the wrong length, or an argument is out of range.
    """
    return _OPS.decode(payload, numel, bits, bucket_size)


def decode_rotated_into(out: Vector, payload: Tensor, bits: int, bucket_size: int) -> None:
    """Overwrite a vector with what `decode_rotated` returns; as `decode_into`."""
    _OPS.decode_into(out, payload, bits, bucket_size)


def decode_rotated_mean_into(out: Vector, payloads: Tensor, bits: int, bucket_size: int) -> None:
    """Overwrite a vector with the mean of W payloads; as `decode_mean_into`. Each has a seed of its own."""
    _OPS.decode_mean_into(out, payloads, bits, bucket_size)


def decode_rotated_add_(accumulator: Tensor, payload: Tensor, bits: int, bucket_size: int) -> None:
    """accumulator += decode_rotated(payload), for a contiguous float32 [N] on the device of the payload.

    Raises:
        TypeError, ValueError: as `decode_rotated`.
    """
    _OPS.decode_add_(accumulator, payload, bits, bucket_size)


if library.IMPLEMENTATION == "extension":
    library.fake_writers(
        "encode_rotated_into",
        "reduce_encode_rotated_into",
        "decode_rotated_into",
        "decode_rotated_mean_into",
        "decode_rotated_add_",
    )

    @torch.library.register_fake("mqgrad::decode_rotated")
    def _(payload: Tensor, numel: int, *_: Any) -> Tensor:
        return payload.new_empty(numel, dtype=torch.float32)
