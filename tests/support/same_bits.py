"""Whether tensors hold the same: all bits, so that −0 is not +0, except that any NaN is as good as another."""

import torch
from torch import Tensor

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(ours: Tensor, expected: Tensor) -> bool:
    return ours.dtype == expected.dtype and torch.equal(_bits(ours), _bits(expected))


def assert_same(ours: Tensor, expected: Tensor) -> None:
    """``ours`` may be on another device."""
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(_bits(ours.cpu()), _bits(expected), rtol=0, atol=0)


def _bits(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    return x.masked_fill(x.isnan(), torch.nan).contiguous().view(_INTEGERS[x.itemsize])
