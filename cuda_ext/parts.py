"""Ops on several parts of a vector, each of N elements and `stride` elements behind the one before.

An exchange codes a part of every shard at a time, and where ranks share cores a call costs as much again as its
kernel. On the CPU with the extension alone (:func:`.library.has_cpu_ops`). The compiled ops check tensors and sizes,
and raise ``RuntimeError``.
"""

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, scattered
from mqgrad.cuda_ext.scattered import Vector


def _part_numel(vector: Vector, payloads: Tensor, stride: int) -> int:
    return vector.numel() - (len(payloads) - 1) * stride


def encode_parts(
    x: Vector,
    stride: int,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    bucket_ids: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor,
) -> None:
    """Encode R parts of a vector, each to what :func:`.encode` makes of it.

    Args:
        x: [(R−1)·stride + N]; what lies between the parts plays no part.
        stride: a multiple of bucket_size, at least N.
        bucket_ids: int64, of all scale buckets of x, in the parts and between them.
        residual: float32, as long as x; updated in the parts.
        out: uint8 [R, payload_bytes(N, bits, bucket_size)], its rows contiguous.
    """
    checks.require_feedback(None, alpha, beta, 0, out.device)
    settings = (stride, bits, bucket_size, stochastic, checks.as_int64(seed), alpha, beta, bucket_ids)
    library.note_written(out, residual)
    torch.ops.mqgrad.encode_parts_into(
        out, *scattered.pieces(x), residual, _part_numel(x, out, stride), *settings
    )


def decode_parts_into(out: Vector, payloads: Tensor, stride: int, bits: int, bucket_size: int) -> None:
    """Overwrite R parts of a vector [(R−1)·stride + N] with what :func:`.decode` makes of payloads [R, P]."""
    numel = _part_numel(out, payloads, stride)
    scattered.overwrite(out, torch.ops.mqgrad.decode_parts_into, payloads, numel, stride, bits, bucket_size)


def encode_rotated_parts(
    x: Vector,
    stride: int,
    bits: int,
    bucket_size: int,
    unbiased: bool,
    seed: int,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor,
) -> None:
    """The same as :func:`.encode_rotated`, as :func:`encode_parts`."""
    checks.require_feedback(None, alpha, beta, 0, out.device)
    settings = (stride, bits, bucket_size, unbiased, checks.as_int64(seed), alpha, beta)
    library.note_written(out, residual)
    torch.ops.mqgrad.encode_rotated_parts_into(
        out, *scattered.pieces(x), residual, _part_numel(x, out, stride), *settings
    )


def decode_rotated_parts_into(
    out: Vector, payloads: Tensor, stride: int, bits: int, bucket_size: int
) -> None:
    """The same as :func:`.decode_rotated`, as :func:`decode_parts_into`."""
    numel = _part_numel(out, payloads, stride)
    scattered.overwrite(
        out, torch.ops.mqgrad.decode_rotated_parts_into, payloads, numel, stride, bits, bucket_size
    )


def sparse_encode_parts(
    x: Vector,
    stride: int,
    elements_per_bit: int,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor,
) -> None:
    """The same as :func:`.sparse_encode`, as :func:`encode_parts`; any stride of at least N."""
    checks.require_feedback(None, alpha, beta, 0, out.device)
    library.note_written(out, residual)
    torch.ops.mqgrad.sparse_encode_parts_into(
        out,
        *scattered.pieces(x),
        residual,
        _part_numel(x, out, stride),
        stride,
        elements_per_bit,
        alpha,
        beta,
    )


def sparse_decode_parts_into(out: Vector, payloads: Tensor, stride: int, elements_per_bit: int) -> None:
    """The same as :func:`.sparse_decode`, as :func:`decode_parts_into`."""
    numel = _part_numel(out, payloads, stride)
    scattered.overwrite(
        out, torch.ops.mqgrad.sparse_decode_parts_into, payloads, numel, stride, elements_per_bit
    )


if library.IMPLEMENTATION == "extension":
    library.fake_writers(
        *("encode_parts_into", "decode_parts_into"),
        *("encode_rotated_parts_into", "decode_rotated_parts_into"),
        *("sparse_encode_parts_into", "sparse_decode_parts_into"),
    )
