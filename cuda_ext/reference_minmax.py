"""MQGrad's min-max code in plain torch. Shape suffixes: R rows, C columns."""

import torch
from torch import Tensor

from mqgrad.cuda_ext.reference import number
from mqgrad.cuda_ext.reference_bits import pack, unpack


def encode_minmax(x: Tensor, bits: int) -> Tensor:
    """See `mqgrad.cuda_ext.encode_minmax`."""
    if x.numel() == 0:
        return x.new_empty(0, dtype=torch.uint8)
    x = x.float()
    min_C, range_C = x.amin(0), x.amax(0) - x.amin(0)
    finite_C = x.isfinite().all(0) & range_C.isfinite()
    min_C = torch.where(finite_C, min_C + 0.0, 0.0)
    range_C = torch.where(finite_C, range_C, torch.nan)
    cells = 2**bits
    y_RC = (x - min_C) / (range_C + number(1e-6, x)) * cells
    codes_RC = torch.where(y_RC > 0, y_RC, 0.0).clamp(max=cells - 1).to(torch.int64)
    return torch.cat([min_C.view(torch.uint8), range_C.view(torch.uint8), pack(codes_RC.flatten(), bits)])


def decode_minmax(payload: Tensor, rows: int, columns: int, bits: int) -> Tensor:
    """See `mqgrad.cuda_ext.decode_minmax`."""
    if rows * columns == 0:
        return payload.new_empty(rows, columns, dtype=torch.float32)
    min_C, range_C = payload[: 8 * columns].clone().view(torch.float32).view(2, columns)
    codes_RC = unpack(payload[8 * columns :], rows * columns, bits).view(rows, columns)
    return min_C + range_C / number(2**bits, payload) * (codes_RC.float() + 0.5)
