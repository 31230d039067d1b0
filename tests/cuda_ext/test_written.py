"""Autograd is told what the ops write to: a gradient of what was overwritten is an error, and no wrong number."""

from collections.abc import Callable

import pytest
import torch
from built import needs_extension
from torch import Tensor

from mqgrad import cuda_ext

X = torch.linspace(-1, 1, 1024)
UNIFORM, ROTATED = cuda_ext.encode(X, 4, 512, False, 0), cuda_ext.encode_rotated(X, 2, 512, True, 0)
PARTS, ROTATED_PARTS = (
    UNIFORM.new_zeros(2, cuda_ext.payload_bytes(512, 4, 512)),
    ROTATED.new_zeros(2, cuda_ext.rotated_bytes(512, 2, 512)),
)
HALF, SPARSE = cuda_ext.encode_bfloat16(X), cuda_ext.sparse_encode(X, 4)
SPARSE_PARTS = SPARSE.new_zeros(2, cuda_ext.sparse_bytes(512, 4))


WRITERS = pytest.mark.parametrize(
    "write",
    [
        lambda x: cuda_ext.decode_into(x, UNIFORM, 4, 512),
        lambda x: cuda_ext.decode_into(cuda_ext.Scattered([x], [0], 1024), UNIFORM, 4, 512),
        lambda x: cuda_ext.decode_mean_into(x, UNIFORM[None], 4, 512),
        lambda x: cuda_ext.decode_add_(x, UNIFORM, 4, 512),
        lambda x: cuda_ext.encode(X, 4, 512, False, 0, residual=x),
        lambda x: cuda_ext.reduce_encode(UNIFORM[None], 1024, 4, 512, False, 0, residual=x),
        lambda x: cuda_ext.decode_bfloat16_into(x, HALF),
        lambda x: cuda_ext.decode_bfloat16_mean_into(x, HALF[None]),
        lambda x: cuda_ext.decode_bfloat16_add_(x, HALF),
        lambda x: cuda_ext.encode_bfloat16(X, residual=x),
        lambda x: cuda_ext.reduce_encode_bfloat16(HALF[None], 1024, residual=x),
        lambda x: cuda_ext.decode_rotated_into(x, ROTATED, 2, 512),
        lambda x: cuda_ext.decode_rotated_mean_into(x, ROTATED[None], 2, 512),
        lambda x: cuda_ext.decode_rotated_add_(x, ROTATED, 2, 512),
        lambda x: cuda_ext.encode_rotated(X, 2, 512, True, 0, residual=x),
        lambda x: cuda_ext.reduce_encode_rotated(ROTATED[None], 1024, 2, 512, True, 0, residual=x),
        lambda x: cuda_ext.sparse_decode_mean_into(x, SPARSE[None], 4),
        pytest.param(
            lambda x: cuda_ext.sparse_decode_parts_into(x, SPARSE_PARTS, 512, 4), marks=needs_extension
        ),
        pytest.param(
            lambda x: cuda_ext.sparse_encode_parts(X, 512, 4, residual=x, out=SPARSE_PARTS),
            marks=needs_extension,
        ),
        pytest.param(lambda x: cuda_ext.decode_parts_into(x, PARTS, 512, 4, 512), marks=needs_extension),
        pytest.param(
            lambda x: cuda_ext.encode_parts(X, 512, 4, 512, False, 0, residual=x, out=PARTS),
            marks=needs_extension,
        ),
        pytest.param(
            lambda x: cuda_ext.decode_rotated_parts_into(x, ROTATED_PARTS, 512, 2, 512), marks=needs_extension
        ),
        pytest.param(
            lambda x: cuda_ext.encode_rotated_parts(X, 512, 2, 512, True, 0, residual=x, out=ROTATED_PARTS),
            marks=needs_extension,
        ),
        lambda x: cuda_ext.sparse_decode_add_(x, SPARSE, 4),
        lambda x: cuda_ext.sparse_encode(X, 4, residual=x),
    ],
)


@WRITERS
def test_backward_through_what_was_overwritten_raises(write: Callable[[Tensor], object]) -> None:
    saved, weight = torch.ones(1024), torch.ones(1024, requires_grad=True)
    product = (weight * saved).sum()
    write(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@needs_extension
@WRITERS
def test_what_a_gradient_flows_through_is_not_written_to(write: Callable[[Tensor], object]) -> None:
    """It flowed on as if nothing had been written."""
    leaf = torch.ones(1024, requires_grad=True)
    for x in (leaf, leaf * 3):
        with pytest.raises(RuntimeError, match="requires grad"):
            write(x)
    with torch.no_grad():
        write(leaf)


def test_payloads_that_are_given_are_counted_as_written() -> None:
    out = torch.zeros(len(UNIFORM) + cuda_ext.CHECKSUM_BYTES, dtype=torch.uint8)
    before = out._version
    cuda_ext.encode(X, 4, 512, False, 0, out=out[: len(UNIFORM)])
    encoded = out._version
    cuda_ext.write_checksums_(out, [len(out)])
    assert before < encoded < out._version
