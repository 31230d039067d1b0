"""The ops of widths below one bit: the largest magnitudes of a vector, their values in few bits.

Arguments are checked here; then the C++ kernel or the reference runs.
"""

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference_sparse, scattered
from mqgrad.cuda_ext.decoding import DecodeOps
from mqgrad.cuda_ext.scattered import Vector


def sparse_bytes(numel: int, elements_per_bit: int) -> int:
    """Length of what `sparse_encode` returns: numel / elements_per_bit bits, and never less than one entry takes.

    Raises:
        ValueError: elements_per_bit outside 1..64, or numel negative.
    """
    checks.require_sparse(numel, elements_per_bit)
    return checks.sparse_layout(numel, elements_per_bit).payload_bytes


def sparse_count(numel: int, elements_per_bit: int) -> int:
    """Elements of ``numel`` that `sparse_encode` keeps, at most.

    Raises:
        ValueError: as `sparse_bytes`.
    """
    checks.require_sparse(numel, elements_per_bit)
    return checks.sparse_layout(numel, elements_per_bit).count


_OPS = DecodeOps(
    name="sparse_decode",
    reference=reference_sparse,
    payload_bytes=sparse_bytes,
    fuses_means=lambda device, elements_per_bit: library.has_cpu_ops(device),
)


def sparse_encode(
    x: Vector,
    elements_per_bit: int,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Keep the largest magnitudes of the whole vector, at one of eight logarithmic levels and with their sign.

    Contractive: ‖Q(x) − x‖ < ‖x‖ for x ≠ 0. Indices are Elias-Fano coded (Elias 1974, Fano 1971), so that the length
    is a function of N and the width alone; how many elements are kept follows from it. Of equal magnitudes the first
    are kept. A NaN or infinity makes the whole vector decode to NaN.

    Args:
        x: [N], float32, float64, float16 or bfloat16, in one tensor or scattered; coded as float32.
        elements_per_bit: 1..64, one over the width.
        residual, alpha, beta: error feedback, as in `encode`; the residual is left as it was where x + alpha·residual
            is not finite.
        out: a contiguous tensor like the result, or a slice of one, to be written and returned.

    Returns:
        The payload, uint8 [sparse_bytes(N, elements_per_bit)].

    Raises:
        TypeError: x is not a tensor of a supported type.
        ValueError: a wrong shape or value, or what is written shares memory with another argument.
    """
    x, numel = scattered.readable(x), x.numel()
    out = checks.payload_out(out, sparse_bytes(numel, elements_per_bit), x.device)
    checks.require_feedback(residual, alpha, beta, numel, x.device, x=scattered.in_one(x))
    checks.require_apart("out", out, x=scattered.in_one(x), residual=residual)
    library.note_written(out, residual)
    library.kernels(x.device, reference_sparse).sparse_encode_into(
        out, *scattered.pieces(x), residual, numel, elements_per_bit, alpha, beta
    )
    return out


def sparse_decode(payload: Tensor, numel: int, elements_per_bit: int) -> Tensor:
    """Decode what `sparse_encode` returned for the same numel and width.

    Any bytes of the right length decode to something and harm nothing: indices that are out of range or out of
    order are ignored, a top magnitude that is not finite decodes to NaN.

    Returns:
        float32 [numel].

    Raises:
        TypeError: payload is not a uint8 tensor.
        ValueError: payload has the wrong length, or an argument is out of range.
    """
    return _OPS.decode(payload, numel, elements_per_bit)


def sparse_decode_into(out: Vector, payload: Tensor, elements_per_bit: int) -> None:
    """Overwrite a vector with what `sparse_decode` returns.

    Args:
        out: float32 [N], contiguous, or scattered, of any floating types.

    Raises:
        TypeError, ValueError: as `sparse_decode`, and as `sparse_decode_mean_into` for ``out``.
    """
    checks.require_payload(payload, sparse_bytes(out.numel(), elements_per_bit))
    sparse_decode_mean_into(out, payload[None], elements_per_bit)  # there is no kernel for one alone


def sparse_decode_add_(accumulator: Tensor, payload: Tensor, elements_per_bit: int) -> None:
    """accumulator += sparse_decode(payload), touching only the elements that were kept.

    Args:
        accumulator: float32 [N], contiguous, on the device of payload; updated.

    Raises:
        TypeError: payload is not uint8, or accumulator not float32.
        ValueError: a wrong shape, length or device, or the two share memory.
    """
    _OPS.decode_add_(accumulator, payload, elements_per_bit)


def sparse_decode_mean_into(out: Vector, payloads: Tensor, elements_per_bit: int) -> None:
    """Overwrite a vector with the mean of W payloads.

    The bits are those of `sparse_decode_add_` for every row in turn to float32 zeros, divided by W. On the CPU a
    block at a time, whose sum stays in the cache.

    Args:
        out: float32 [N], contiguous, or scattered, of any floating types.
        payloads: uint8 [W, sparse_bytes(N, elements_per_bit)], W at least 1. Untrusted, as in `sparse_decode`.

    Raises:
        TypeError: payloads are not uint8, or out is a tensor and not float32.
        ValueError: a wrong shape, length or device, or the two share memory.
    """
    _OPS.decode_mean_into(out, payloads, elements_per_bit)


if library.IMPLEMENTATION == "extension":
    library.fake_writers("sparse_encode_into", "sparse_decode_add_", "sparse_decode_mean_into")

    @torch.library.register_fake("mqgrad::sparse_decode")
    def _(payload: Tensor, numel: int, elements_per_bit: int) -> Tensor:
        return payload.new_empty(numel, dtype=torch.float32)
