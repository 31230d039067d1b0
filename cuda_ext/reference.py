"""Uniform levels in plain torch: as in the other reference_*.py, what is right, byte for byte. The C++ kernels are
tested against these files.

The notes in csrc/*.h explain the choices: [Payload], [Levels], [Scale], [Fixed point], [Random numbers], [Feedback].
Shape suffixes: N elements, B buckets, L elements of a bucket (the last one padded).

Divisors are tensors throughout: torch on CUDA multiplies by the reciprocal of a Python number. They are filled there:
to copy one from the host would wait for the GPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext.reference_bits import pack, unpack
from mqgrad.cuda_ext.reference_random import DITHER_BITS, dither

CLIP = {2: 1.0, 3: 1.6479, 4: 2.1810}
"""k_b of Note [Scale]; the widths not listed do not clip."""
LEAST_CLIP = 0.5
"""Share of the largest magnitude below which four bits do not clip."""

MAGNITUDE_ONE = 2**11


def encode(
    x: Tensor,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    bucket_ids: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    """See `mqgrad.cuda_ext.encode`."""
    x = x.detach().float()
    v = x if residual is None else x + alpha * residual
    payload = _encode(v, bits, bucket_size, stochastic, seed, bucket_ids)
    if residual is not None:
        keep_error(x, residual, decode(payload, x.numel(), bits, bucket_size), beta)
    return payload


def encode_into(
    payload: Tensor,
    x: list[Tensor],
    offsets: list[int],
    residual: Tensor | None,
    numel: int,
    bits: int,
    bucket_size: int,
    stochastic: bool,
    seed: int,
    alpha: float,
    beta: float,
    bucket_ids: Tensor | None,
) -> None:
    """The same as the op, of a vector in one tensor."""
    code = (bits, bucket_size, stochastic, seed, bucket_ids)
    payload.copy_(encode(x[0], *code, residual=residual, alpha=alpha, beta=beta))


def reduce_encode_into(
    payload: Tensor,
    payloads: Tensor,
    residual: Tensor | None,
    numel: int,
    bits: int,
    bucket_size: int,
    *settings: Any,
) -> None:
    """See `mqgrad.cuda_ext.reduce_encode`."""
    mean = mean_of(payloads, numel, lambda sums, row: decode_add_(sums, row, bits, bucket_size))
    encode_into(payload, [mean], [0], residual, numel, bits, bucket_size, *settings)


def keep_error(x: Tensor, residual: Tensor, sent: Tensor, beta: float) -> None:
    """Note [Feedback] of csrc/feedback.h: what is not finite leaves the residual as it was."""
    kept = beta * residual + (x - sent)
    residual.copy_(torch.where(kept.isfinite(), kept, residual))


def decode(payload: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    """See `mqgrad.cuda_ext.decode`."""
    num_buckets = -(-numel // bucket_size)
    scale_B = payload[: 4 * num_buckets].clone().view(torch.float32)
    scale_B = torch.where(scale_B.isfinite(), scale_B, torch.nan)
    scale_N = scale_B.repeat_interleave(min(bucket_size, max(numel, 1)))[:numel]
    codes_N = unpack(payload[4 * num_buckets :], numel, bits)
    if bits == 1:
        return (2 * codes_N - 1).float() * scale_N
    s = _levels(bits)
    return (codes_N.clamp(max=2 * s) - s).float() / number(s, payload) * scale_N


def decode_add_(accumulator: Tensor, payload: Tensor, bits: int, bucket_size: int) -> None:
    """See `mqgrad.cuda_ext.decode_add_`."""
    accumulator.add_(decode(payload, accumulator.numel(), bits, bucket_size))


def mean_of(payloads: Tensor, numel: int, add: Callable[[Tensor, Tensor], None]) -> Tensor:
    """The mean of payloads, float32 [numel]: each row goes to `add(sums, row)` in turn."""
    mean = payloads.new_zeros(numel, dtype=torch.float32)
    for row in payloads:
        add(mean, row)
    return mean.div_(number(len(payloads), mean)) if len(payloads) > 1 else mean


def _encode(
    x_N: Tensor, bits: int, bucket_size: int, stochastic: bool, seed: int, bucket_ids: Tensor | None
) -> Tensor:
    numel = x_N.numel()
    length = min(bucket_size, max(numel, 1))
    num_buckets = -(-numel // length)
    x_BL = torch.nn.functional.pad(x_N, (0, num_buckets * length - numel)).view(num_buckets, length)
    count_B = torch.full((num_buckets,), length, dtype=torch.int64, device=x_N.device)
    count_B[-1:] = numel - (num_buckets - 1) * length
    scale_B = _scales(x_BL, count_B, bits, stochastic)

    usable_B1 = (scale_B > 0)[:, None]
    if stochastic:
        if bucket_ids is None:
            bucket_ids = torch.arange(num_buckets, device=x_N.device)
        codes_BL = _stochastic_codes(x_BL, scale_B, bits, dither(seed, bucket_ids, length))
    else:
        codes_BL = _nearest_codes(x_BL, scale_B, bits)
    codes_BL = torch.where(usable_B1, codes_BL, max(1, _levels(bits)))
    return torch.cat([scale_B.view(torch.uint8), pack(codes_BL.flatten()[:numel], bits)])


def _scales(x_BL: Tensor, count_B: Tensor, bits: int, stochastic: bool) -> Tensor:
    """Note [Scale]."""
    max_B = x_BL.abs().amax(1)
    finite_B = max_B.isfinite()
    scale_B = torch.where(finite_B, max_B, torch.nan)
    if stochastic or bits > 4:
        return scale_B
    usable_B = finite_B & (max_B > 0)
    m_BL = _on_grid(torch.where(usable_B[:, None], x_BL.abs(), 0.0), max_B, MAGNITUDE_ONE) - MAGNITUDE_ONE
    sum_B = m_BL.sum(1).double()
    if bits == 1:
        fraction_B = sum_B / (count_B.double() * MAGNITUDE_ONE)
    else:
        fraction_B = CLIP[bits] * ((m_BL * m_BL).sum(1).double() / (sum_B * MAGNITUDE_ONE))
    if bits == 4:
        fraction_B = fraction_B.where(fraction_B >= LEAST_CLIP, 1.0)
    clipped_B = (fraction_B.clamp(max=1.0) * max_B.double()).float()
    return torch.where(usable_B, clipped_B, scale_B)


def _on_grid(x_BL: Tensor, scale_B: Tensor, top: int) -> Tensor:
    """Note [Fixed point]: x from [-scale, scale] to int64 [0, 2 top]; anything where the scale is not > 0."""
    scale_B = torch.where(scale_B > 0, scale_B, 1.0)
    lift_B = torch.where(scale_B < 2.0**-96, number(2.0**64, x_BL), number(1.0, x_BL))
    factor_B = number(top, x_BL) / (scale_B * lift_B)
    z_BL = x_BL * lift_B[:, None] * factor_B[:, None] + (2**23 + top)
    return z_BL.clamp(2**23, 2**23 + 2 * top).to(torch.int64) - 2**23


def _nearest_codes(x_BL: Tensor, scale_B: Tensor, bits: int) -> Tensor:
    return (~(x_BL < 0)).to(torch.int64) if bits == 1 else _on_grid(x_BL, scale_B, _levels(bits))


def _stochastic_codes(x_BL: Tensor, scale_B: Tensor, bits: int, dither_BL: Tensor) -> Tensor:
    """Note [Stochastic rounding]."""
    top = 2**DITHER_BITS * _levels(bits) if bits > 1 else 2**DITHER_BITS // 2
    return (_on_grid(x_BL, scale_B, top) + dither_BL) >> DITHER_BITS


def _levels(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def number(value: float, like: Tensor) -> Tensor:
    """A float32 scalar on the device of another tensor, filled there; see above."""
    return torch.full((), value, dtype=torch.float32, device=like.device)
