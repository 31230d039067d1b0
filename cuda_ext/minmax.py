"""The public ops of MQGrad's own quantizer: cells between the minimum and the maximum of each column."""

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference_minmax


def encode_minmax(x: Tensor, bits: int) -> Tensor:
    """MQGrad's quantizer (Cui et al. 2018): per column, 2^bits cells between minimum and maximum, deterministic.

    Args:
        x: [R, C], float32, float64, float16 or bfloat16.
        bits: 1..8.

    Returns:
        uint8: minimums [C] and ranges [C] as float32, then ceil(R·C·bits / 8) bytes of row-major
        codes. Empty if x is.

    Raises:
        TypeError: x is not a tensor of a supported type.
        ValueError: a wrong shape or value.
    """
    checks.require_input(x, 2)
    checks.require_layout(x.numel(), bits, 1)
    return library.kernels(x.device, reference_minmax).encode_minmax(x.contiguous(), bits)


def decode_minmax(payload: Tensor, rows: int, columns: int, bits: int) -> Tensor:
    """Decode what `encode_minmax` returned: float32 [rows, columns], the midpoint of each element's cell.

    A constant column is exact. A column that is not finite, or whose range overflows float32, is NaN.

    Raises:
        TypeError: payload is not a uint8 tensor.
        ValueError: payload has the wrong length, or an argument is out of range.
    """
    if rows < 0 or columns < 0:
        raise ValueError(f"rows and columns must not be negative, got {rows} and {columns}")
    checks.require_layout(rows * columns, bits, 1)
    checks.require_payload(payload, checks.minmax_bytes(rows, columns, bits))
    return library.kernels(payload.device, reference_minmax).decode_minmax(
        payload.contiguous(), rows, columns, bits
    )


if library.IMPLEMENTATION == "extension":

    @torch.library.register_fake("mqgrad::encode_minmax")
    def _(x: Tensor, bits: int) -> Tensor:
        return x.new_empty(checks.minmax_bytes(x.shape[0], x.shape[1], bits), dtype=torch.uint8)

    @torch.library.register_fake("mqgrad::decode_minmax")
    def _(payload: Tensor, rows: int, columns: int, bits: int) -> Tensor:
        return payload.new_empty(rows, columns, dtype=torch.float32)
