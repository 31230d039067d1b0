"""The ops of width 16 in plain torch: what is right, byte for byte. Note [bfloat16] in csrc/bfloat16.h."""

import torch
from torch import Tensor

from mqgrad.cuda_ext.reference import keep_error, mean_of


def encode_bfloat16(
    x: Tensor, *, residual: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    """See `mqgrad.cuda_ext.encode_bfloat16`."""
    x = x.detach().float()
    sent = _round(x if residual is None else x + alpha * residual)
    if residual is not None:
        keep_error(x, residual, sent.float(), beta)
    return sent.view(torch.uint8)


def encode_bfloat16_into(
    payload: Tensor,
    x: list[Tensor],
    offsets: list[int],
    residual: Tensor | None,
    numel: int,
    alpha: float,
    beta: float,
) -> None:
    """The same as the op, of a vector in one tensor."""
    payload.copy_(encode_bfloat16(x[0], residual=residual, alpha=alpha, beta=beta))


def reduce_encode_bfloat16_into(
    payload: Tensor, payloads: Tensor, residual: Tensor | None, numel: int, *gains: float
) -> None:
    """See `mqgrad.cuda_ext.reduce_encode_bfloat16`."""
    mean = mean_of(payloads, numel, decode_bfloat16_add_)
    encode_bfloat16_into(payload, [mean], [0], residual, numel, *gains)


def decode_bfloat16(payload: Tensor, numel: int) -> Tensor:
    """See `mqgrad.cuda_ext.decode_bfloat16`."""
    return payload.clone().view(torch.bfloat16).float()  # a slice of a message may be unaligned


def decode_bfloat16_add_(accumulator: Tensor, payload: Tensor) -> None:
    """See `mqgrad.cuda_ext.decode_bfloat16_add_`."""
    accumulator.add_(decode_bfloat16(payload, accumulator.numel()))


def _round(v: Tensor) -> Tensor:
    rounded = v.to(torch.bfloat16)
    return torch.where(v.isnan(), torch.full_like(rounded, torch.nan), rounded)
