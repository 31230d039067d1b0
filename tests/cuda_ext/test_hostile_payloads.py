"""Payloads come from outside: wrong ones are refused and change nothing.

What any bytes decode to is in test_any_payload.py.
"""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.codecs.codec import Codec
from mqgrad.codecs.rotation import RotationCodec
from mqgrad.codecs.vector_codec import Feedback, VectorCodec
from mqgrad.compressors.minmax import _decode as decode_blocks
from mqgrad.widths import Width

NUMEL = 4000
ROWS, COLUMNS = 50, 80

UNIFORM = Codec(bucket_size=64)
CODECS: dict[str, tuple[VectorCodec, Width, Width]] = {
    "uniform": (UNIFORM, 4, 3),
    "rotated": (RotationCodec(bucket_size=64, unbiased=True), 2, 3),
    "sparse": (UNIFORM, 1 / 4, 1 / 8),
    "bfloat16": (UNIFORM, 16, 8),
    "float32": (UNIFORM, 32, 16),
}
"""A codec, its width, and that of somebody who disagrees."""

Receive = Callable[[VectorCodec, Width, Tensor, Tensor], object]
RECEIVE_ONE: dict[str, Receive] = {
    "decode": lambda codec, bits, payload, floats: codec.decode(payload, NUMEL, bits),
    "decode_into_": lambda codec, bits, payload, floats: codec.decode_into_(floats, payload, bits),
    "decode_add_": lambda codec, bits, payload, floats: codec.decode_add_(floats, payload, bits),
}
RECEIVE_MANY: dict[str, Receive] = {
    "decode_mean": lambda codec, bits, payloads, floats: codec.decode_mean(payloads, NUMEL, bits),
    "decode_mean_into_": lambda codec, bits, payloads, floats: codec.decode_mean_into_(
        floats, payloads, bits
    ),
    "encode_mean": lambda codec, bits, payloads, floats: codec.encode_mean(payloads, NUMEL, bits),
    "with_feedback": lambda codec, bits, payloads, floats: codec.encode_mean(
        payloads, NUMEL, bits, feedback=Feedback(floats)
    ),
}
RECEIVE_MATRIX: dict[str, Callable[[Tensor], object]] = {
    "decode_minmax": lambda payload: cuda_ext.decode_minmax(payload, ROWS, COLUMNS, 4),
    "blocks": lambda payload: decode_blocks(payload, [torch.empty(ROWS, COLUMNS)], 4),
}

# The shape of a payload, from its size as a function of elements and width, the width, and another width.
WRONG_SHAPES: dict[str, Callable[[Callable[[int, Width], int], Width, Width], tuple[int, ...]]] = {
    "one_byte_too_few": lambda size, bits, other: (size(NUMEL, bits) - 1,),
    "one_byte_too_many": lambda size, bits, other: (size(NUMEL, bits) + 1,),
    "empty": lambda size, bits, other: (0,),
    "half_the_elements": lambda size, bits, other: (size(NUMEL // 2, bits),),
    "twice_the_elements": lambda size, bits, other: (size(2 * NUMEL, bits),),
    "another_width": lambda size, bits, other: (size(NUMEL, other),),
    "two_dimensions": lambda size, bits, other: (1, size(NUMEL, bits)),
}


def minmax_size(numel: int, bits: Width) -> int:
    return cuda_ext.minmax_bytes(numel // COLUMNS, COLUMNS, int(bits))


def assert_refused(
    receive: Receive, codec: VectorCodec, bits: Width, payload: Tensor, error: type[Exception], message: str
) -> None:
    """Neither what is written in place nor its neighbours change."""
    flat = torch.randn(NUMEL + 64, generator=torch.Generator().manual_seed(0))
    before = flat.clone()
    with pytest.raises(error, match=re.escape(message)):
        receive(codec, bits, payload, flat[32:-32])
    assert torch.equal(flat.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("wrong", WRONG_SHAPES)
@pytest.mark.parametrize("receive", [*RECEIVE_ONE, *RECEIVE_MANY])
@pytest.mark.parametrize("family", CODECS)
def test_a_wrong_size_is_refused(family: str, receive: str, wrong: str) -> None:
    codec, bits, other = CODECS[family]
    payload = torch.zeros(WRONG_SHAPES[wrong](codec.payload_bytes, bits, other), dtype=torch.uint8)
    if receive in RECEIVE_MANY:
        payload = torch.stack([payload, payload])
    call = (RECEIVE_ONE | RECEIVE_MANY)[receive]
    assert_refused(call, codec, bits, payload, ValueError, f"got {tuple(payload.shape)}")


@pytest.mark.parametrize("rows", ["none", "not_a_matrix", "nothing"])
@pytest.mark.parametrize("receive", RECEIVE_MANY)
@pytest.mark.parametrize("family", CODECS)
def test_no_rows_are_refused(family: str, receive: str, rows: str) -> None:
    """Also by codes whose mean is taken row by row: that of none would be NaN."""
    codec, bits, _ = CODECS[family]
    size = codec.payload_bytes(NUMEL, bits)
    shape: tuple[int, ...] = {"none": (0, size), "not_a_matrix": (size,), "nothing": (0,)}[rows]
    payloads = torch.zeros(shape, dtype=torch.uint8)
    assert_refused(RECEIVE_MANY[receive], codec, bits, payloads, ValueError, f"got {shape}")


@pytest.mark.parametrize("receive", [*RECEIVE_ONE, *RECEIVE_MANY])
@pytest.mark.parametrize("family", CODECS)
def test_other_types_than_bytes_are_refused(family: str, receive: str) -> None:
    codec, bits, _ = CODECS[family]
    payload = torch.zeros(codec.payload_bytes(NUMEL, bits), dtype=torch.int8)
    if receive in RECEIVE_MANY:
        payload = torch.stack([payload, payload])
    call = (RECEIVE_ONE | RECEIVE_MANY)[receive]
    assert_refused(call, codec, bits, payload, TypeError, "must be a uint8 tensor, got torch.int8")


@pytest.mark.parametrize("wrong", WRONG_SHAPES)
@pytest.mark.parametrize("receive", RECEIVE_MATRIX)
def test_a_wrong_size_of_a_matrix_is_refused(receive: str, wrong: str) -> None:
    payload = torch.zeros(WRONG_SHAPES[wrong](minmax_size, 4, 3), dtype=torch.uint8)
    # Where the payload of several matrices is cut, torch names its length.
    with pytest.raises((ValueError, RuntimeError), match=rf"(got \(|exactly to ){payload.shape[0]}\b"):
        RECEIVE_MATRIX[receive](payload)


@pytest.mark.parametrize("receive", RECEIVE_MATRIX)
def test_other_types_than_bytes_are_refused_as_a_matrix(receive: str) -> None:
    with pytest.raises(TypeError, match=r"must be a uint8 tensor, got torch\.int8"):
        RECEIVE_MATRIX[receive](torch.zeros(minmax_size(NUMEL, 4), dtype=torch.int8))
