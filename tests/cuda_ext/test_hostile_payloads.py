"""Payloads come from outside: wrong ones are refused and change nothing.

What any bytes decode to is in test_any_payload.py.
"""

import dataclasses
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.codecs.codec import codec_at
from mqgrad.codecs.rotation import RotationCodec
from mqgrad.codecs.vector_codec import Feedback, VectorCodec
from mqgrad.compressors.minmax import _decode as decode_blocks

NUMEL = 4000
ROWS, COLUMNS = 50, 80

ROTATED = RotationCodec(bits=2, bucket_size=64, unbiased=True)
CODECS: dict[str, tuple[VectorCodec, VectorCodec]] = {
    "uniform": (codec_at(4, bucket_size=64), codec_at(3, bucket_size=64)),
    "rotated": (ROTATED, dataclasses.replace(ROTATED, bits=3)),
    "sparse": (codec_at(1 / 4), codec_at(1 / 8)),
    "bfloat16": (codec_at(16), codec_at(8, bucket_size=64)),
    "float32": (codec_at(32), codec_at(16)),
}
"""A codec, and that of somebody who disagrees on the width."""

Receive = Callable[[VectorCodec, Tensor, Tensor], object]
RECEIVE_ONE: dict[str, Receive] = {
    "decode": lambda codec, payload, floats: codec.decode(payload, NUMEL),
    "decode_into_": lambda codec, payload, floats: codec.decode_into_(floats, payload),
    "decode_add_": lambda codec, payload, floats: codec.decode_add_(floats, payload),
}
RECEIVE_MANY: dict[str, Receive] = {
    "decode_mean": lambda codec, payloads, floats: codec.decode_mean(payloads, NUMEL),
    "decode_mean_into_": lambda codec, payloads, floats: codec.decode_mean_into_(floats, payloads),
    "encode_mean": lambda codec, payloads, floats: codec.encode_mean(payloads, NUMEL),
    "with_feedback": lambda codec, payloads, floats: codec.encode_mean(
        payloads, NUMEL, feedback=Feedback(floats)
    ),
}
RECEIVE_MATRIX: dict[str, Callable[[Tensor], object]] = {
    "decode_minmax": lambda payload: cuda_ext.decode_minmax(payload, ROWS, COLUMNS, 4),
    "blocks": lambda payload: decode_blocks(payload, [torch.empty(ROWS, COLUMNS)], 4),
}

Size = Callable[[int], int]
# The shape of a payload, from its size as a function of elements, and from that at another width.
WRONG_SHAPES: dict[str, Callable[[Size, Size], tuple[int, ...]]] = {
    "one_byte_too_few": lambda size, other: (size(NUMEL) - 1,),
    "one_byte_too_many": lambda size, other: (size(NUMEL) + 1,),
    "empty": lambda size, other: (0,),
    "half_the_elements": lambda size, other: (size(NUMEL // 2),),
    "twice_the_elements": lambda size, other: (size(2 * NUMEL),),
    "another_width": lambda size, other: (other(NUMEL),),
    "two_dimensions": lambda size, other: (1, size(NUMEL)),
}


def minmax_size(numel: int, bits: int = 4) -> int:
    return cuda_ext.minmax_bytes(numel // COLUMNS, COLUMNS, bits)


def assert_refused(
    receive: Receive, codec: VectorCodec, payload: Tensor, error: type[Exception], message: str
) -> None:
    """Neither what is written in place nor its neighbours change."""
    flat = torch.randn(NUMEL + 64, generator=torch.Generator().manual_seed(0))
    before = flat.clone()
    with pytest.raises(error, match=re.escape(message)):
        receive(codec, payload, flat[32:-32])
    assert torch.equal(flat.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("wrong", WRONG_SHAPES)
@pytest.mark.parametrize("receive", [*RECEIVE_ONE, *RECEIVE_MANY])
@pytest.mark.parametrize("family", CODECS)
def test_a_wrong_size_is_refused(family: str, receive: str, wrong: str) -> None:
    codec, other = CODECS[family]
    payload = torch.zeros(WRONG_SHAPES[wrong](codec.payload_bytes, other.payload_bytes), dtype=torch.uint8)
    if receive in RECEIVE_MANY:
        payload = torch.stack([payload, payload])
    call = (RECEIVE_ONE | RECEIVE_MANY)[receive]
    assert_refused(call, codec, payload, ValueError, f"got {tuple(payload.shape)}")


@pytest.mark.parametrize("rows", ["none", "not_a_matrix", "nothing"])
@pytest.mark.parametrize("receive", RECEIVE_MANY)
@pytest.mark.parametrize("family", CODECS)
def test_no_rows_are_refused(family: str, receive: str, rows: str) -> None:
    """Also by codes whose mean is taken row by row: that of none would be NaN."""
    codec, _ = CODECS[family]
    size = codec.payload_bytes(NUMEL)
    shape: tuple[int, ...] = {"none": (0, size), "not_a_matrix": (size,), "nothing": (0,)}[rows]
    payloads = torch.zeros(shape, dtype=torch.uint8)
    assert_refused(RECEIVE_MANY[receive], codec, payloads, ValueError, f"got {shape}")


@pytest.mark.parametrize("receive", [*RECEIVE_ONE, *RECEIVE_MANY])
@pytest.mark.parametrize("family", CODECS)
def test_other_types_than_bytes_are_refused(family: str, receive: str) -> None:
    codec, _ = CODECS[family]
    payload = torch.zeros(codec.payload_bytes(NUMEL), dtype=torch.int8)
    if receive in RECEIVE_MANY:
        payload = torch.stack([payload, payload])
    call = (RECEIVE_ONE | RECEIVE_MANY)[receive]
    assert_refused(call, codec, payload, TypeError, "must be a uint8 tensor, got torch.int8")


@pytest.mark.parametrize("wrong", WRONG_SHAPES)
@pytest.mark.parametrize("receive", RECEIVE_MATRIX)
def test_a_wrong_size_of_a_matrix_is_refused(receive: str, wrong: str) -> None:
    payload = torch.zeros(WRONG_SHAPES[wrong](minmax_size, partial(minmax_size, bits=3)), dtype=torch.uint8)
    # Where the payload of several matrices is cut, torch names its length.
    with pytest.raises((ValueError, RuntimeError), match=rf"(got \(|exactly to ){payload.shape[0]}\b"):
        RECEIVE_MATRIX[receive](payload)


@pytest.mark.parametrize("receive", RECEIVE_MATRIX)
def test_other_types_than_bytes_are_refused_as_a_matrix(receive: str) -> None:
    with pytest.raises(TypeError, match=r"must be a uint8 tensor, got torch\.int8"):
        RECEIVE_MATRIX[receive](torch.zeros(minmax_size(NUMEL), dtype=torch.int8))
