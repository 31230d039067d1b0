"""The public ops of width 16: arguments checked, then the C++ kernel, or the reference on other devices."""

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference_bfloat16


def encode_bfloat16(x: Tensor) -> Tensor:
    """Round to bfloat16, to nearest, halves to even; every NaN becomes 0x7fc0.

    Args:
        x: [N], float32, float64, float16 or bfloat16; what is not float32 is rounded to it first.

    Returns:
        The payload, uint8 [2·N], little-endian.

    Raises:
        TypeError: x is not a tensor of a supported type.
        ValueError: x is not a vector.
    """
    checks.require_input(x, 1)
    return library.kernels(x.device, reference_bfloat16).encode_bfloat16(x.contiguous(), None, 0.0, 0.0)


def encode_bfloat16_with_feedback(x: Tensor, residual: Tensor, alpha: float, beta: float) -> Tensor:
    """Encode v = x + alpha·h and keep the error in place, h ← beta·h + (x − Q(v)) (ECQ-SGD, Wu et al. 2018).

    Where that is not finite, h is left as it was, element by element.

    Args:
        x: as in `encode_bfloat16`.
        residual: h, float32 [N], contiguous, on the device of x; updated.
        alpha: how much of the residual is sent along.
        beta: how much of the residual is remembered.

    Returns:
        The payload, uint8 [2·N].

    Raises:
        TypeError, ValueError: as `encode_bfloat16`; the residual does not fit, or a coefficient is not finite.
    """
    checks.require_input(x, 1)
    checks.require_floats("residual", residual, x.numel(), x.device)
    checks.require_coefficients(alpha, beta)
    x = x.contiguous()
    checks.require_apart("residual", residual, x=x)
    return library.kernels(x.device, reference_bfloat16).encode_bfloat16(x, residual, alpha, beta)


def reduce_encode_bfloat16(
    payloads: Tensor, numel: int, *, residual: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    """Encode the mean of W payloads, reading each once; the sum itself is never written.

    The bytes are those of `decode_bfloat16_add_` for every row in turn to float32 zeros, a division by W, and
    `encode_bfloat16`, or `encode_bfloat16_with_feedback` if there is a residual.

    Args:
        payloads: uint8 [W, 2·numel], W at least 1. Any bytes will do.
        residual: float32 [numel], contiguous, on the device of payloads; updated.

    The other arguments, the result and the errors are those of `encode_bfloat16_with_feedback`.
    """
    checks.require_payloads(payloads, 2 * numel)
    payloads = checks.rows_of(payloads)
    if residual is not None:
        checks.require_floats("residual", residual, numel, payloads.device)
        checks.require_apart("residual", residual, payloads=payloads)
    checks.require_coefficients(alpha, beta)
    return library.kernels(payloads.device, reference_bfloat16).reduce_encode_bfloat16(
        payloads, residual, numel, alpha, beta
    )


def decode_bfloat16(payload: Tensor, numel: int, *, out: Tensor | None = None) -> Tensor:
    """The values of a payload, float32 [numel]; exact.

    Args:
        out: a contiguous tensor like the result, or a slice of one, to be written and returned.

    Raises:
        TypeError: payload is not a uint8 tensor.
        ValueError: payload does not have 2·numel bytes, or out does not fit.
    """
    checks.require_payload(payload, 2 * numel)
    payload = payload.contiguous()
    if out is None:
        return library.kernels(payload.device, reference_bfloat16).decode_bfloat16(payload, numel)
    checks.require_floats("out", out, numel, payload.device)
    checks.require_apart("out", out, payload=payload)
    library.kernels(payload.device, reference_bfloat16).decode_bfloat16_into(out, payload)
    return out


def decode_bfloat16_add_(accumulator: Tensor, payload: Tensor) -> None:
    """accumulator += decode_bfloat16(payload), for a contiguous float32 [N] on the device of the payload.

    Raises:
        TypeError, ValueError: as `decode_bfloat16`.
    """
    checks.require_floats("accumulator", accumulator, accumulator.numel(), payload.device)
    checks.require_payload(payload, 2 * accumulator.numel())
    payload = payload.contiguous()
    checks.require_apart("accumulator", accumulator, payload=payload)
    library.kernels(payload.device, reference_bfloat16).decode_bfloat16_add_(accumulator, payload)


if library.IMPLEMENTATION == "extension":

    @torch.library.register_fake("mqgrad::encode_bfloat16")
    def _(x: Tensor, residual: Tensor | None, alpha: float, beta: float) -> Tensor:
        return x.new_empty(2 * x.numel(), dtype=torch.uint8)

    @torch.library.register_fake("mqgrad::reduce_encode_bfloat16")
    def _(payloads: Tensor, residual: Tensor | None, numel: int, alpha: float, beta: float) -> Tensor:
        return payloads.new_empty(2 * numel)

    @torch.library.register_fake("mqgrad::decode_bfloat16")
    def _(payload: Tensor, numel: int) -> Tensor:
        return payload.new_empty(numel, dtype=torch.float32)

    @torch.library.register_fake("mqgrad::decode_bfloat16_into")
    def _(out: Tensor, payload: Tensor) -> None:
        return None

    @torch.library.register_fake("mqgrad::decode_bfloat16_add_")
    def _(accumulator: Tensor, payload: Tensor) -> None:
        return None
