"""The bytes of a payload: their layout and number, and what any bytes decode to."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import reference_bits

WIDTHS = range(1, 9)


def stream_codes(packed: bytes, numel: int, bits: int) -> list[int]:
    """The layout's definition as arithmetic on one big integer."""
    stream = int.from_bytes(packed, "little")
    return [(stream >> (i * bits)) & (2**bits - 1) for i in range(numel)]


def payload_of(scales: list[float], codes: list[int], bits: int) -> Tensor:
    stream = sum(code << (i * bits) for i, code in enumerate(codes))
    packed = stream.to_bytes(-(-len(codes) * bits // 8), "little")
    return torch.tensor(list(struct.pack(f"<{len(scales)}f", *scales) + packed), dtype=torch.uint8)


def test_sizes_of_numpys_integers_are_those_of_pythons() -> None:
    """Asked first: what is remembered of one would be found for the other."""
    for n in (np.int32(2**31 - 9), np.int64(2**40 - 1)):
        assert cuda_ext.sparse_bytes(n, np.int32(2)) == cuda_ext.sparse_bytes(int(n), 2)
        assert cuda_ext.sparse_count(n, np.int32(64)) == cuda_ext.sparse_count(int(n), 64)
        assert cuda_ext.rotated_bytes(n, np.int32(4), np.int32(8)) == cuda_ext.rotated_bytes(int(n), 4, 8)
        assert cuda_ext.payload_bytes(n, np.int32(8), np.int32(8)) == cuda_ext.payload_bytes(int(n), 8, 8)
    columns = np.int32(50_000)
    assert cuda_ext.minmax_bytes(columns, columns, 4) == 400_000 + 1_250_000_000


@given(st.integers(1, 8), st.data())
def test_pack_follows_the_layout_and_unpack_inverts_it(bits: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=70))
    packed = reference_bits.pack(torch.tensor(codes, dtype=torch.int64), bits)
    assert stream_codes(bytes(packed.tolist()), len(codes), bits) == codes
    assert reference_bits.unpack(packed, len(codes), bits).tolist() == codes


@given(st.integers(1, 8), st.integers(1, 40), st.data())
def test_decode_reads_the_layout(bits: int, bucket_size: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=70))
    scales = [float(k + 1) for k in range(-(-len(codes) // bucket_size))]
    decoded = cuda_ext.decode(payload_of(scales, codes, bits), len(codes), bits, bucket_size)
    s = max(1, 2 ** (bits - 1) - 1)
    for i, (code, value) in enumerate(zip(codes, decoded.tolist(), strict=True)):
        level = 2 * code - 1 if bits == 1 else min(code, 2 * s) - s
        assert value == pytest.approx(level / s * scales[i // bucket_size], rel=1e-6)


@pytest.mark.parametrize("bits", WIDTHS)
def test_encode_writes_the_layout(bits: int) -> None:
    s = max(1, 2 ** (bits - 1) - 1)
    levels = [-s, s] if bits == 1 else list(range(-s, s + 1))
    x = torch.tensor([level / s * scale for scale in (1.0, 64.0) for level in levels])
    payload = bytes(cuda_ext.encode(x, bits, len(levels), True, 0).tolist())
    assert struct.unpack("<2f", payload[:8]) == (1.0, 64.0)
    codes = [0, 1] if bits == 1 else list(range(2 * s + 1))
    assert stream_codes(payload[8:], len(x), bits) == 2 * codes


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(
    ("numel", "bucket_size"), [(0, 512), (1, 512), (7, 3), (8, 8), (513, 512), (1000, 1), (9, 2**62)]
)
def test_payload_bytes(numel: int, bucket_size: int, bits: int) -> None:
    expected = 4 * -(-numel // bucket_size) + -(-numel * bits // 8)
    assert cuda_ext.payload_bytes(numel, bits, bucket_size) == expected
    assert cuda_ext.encode(torch.randn(numel), bits, bucket_size, False, 0).shape == (expected,)


@pytest.mark.parametrize("bits", WIDTHS)
def test_an_empty_tensor_has_an_empty_payload(bits: int) -> None:
    payload = cuda_ext.encode(torch.empty(0), bits, 512, True, 0, residual=torch.empty(0))
    assert payload.numel() == 0
    assert cuda_ext.decode(payload, 0, bits, 512).shape == (0,)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("numel", [1, 77, 2000])
def test_any_bytes_decode_to_levels_or_nan(bits: int, numel: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    size = cuda_ext.payload_bytes(numel, bits, 16)
    payload = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    decoded = cuda_ext.decode(payload, numel, bits, 16)
    scales = payload[: 4 * -(-numel // 16)].clone().view(torch.float32).abs().repeat_interleave(16)[:numel]
    assert torch.equal(decoded.isnan(), ~scales.isfinite())
    assert bool((decoded.abs() <= scales)[scales.isfinite()].all())


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_payload_may_lie_anywhere_in_a_message(offset: int) -> None:
    x = torch.randn(100)
    for payload, decode in (
        (cuda_ext.encode(x, 3, 16, False, 0), lambda p: cuda_ext.decode(p, 100, 3, 16)),
        (cuda_ext.encode_minmax(x.view(20, 5), 3), lambda p: cuda_ext.decode_minmax(p, 20, 5, 3)),
    ):
        message = torch.zeros(len(payload) + offset, dtype=torch.uint8)
        message[offset:] = payload
        assert torch.equal(decode(message[offset:]), decode(payload))
