"""Parts of a vector by one op: each is what the op for one vector makes of it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Scattered

pytestmark = pytest.mark.skipif(cuda_ext.IMPLEMENTATION != "extension", reason="the extension was not built")

BUCKET = 64  # of rotations; uniform buckets may be of any size, and the sparse code has none
CODES = ("uniform", "rotated", "sparse")


def vector_of(span: int, seed: int) -> Scattered:
    """In tensors of two types with gaps between them, of which the first begins before the vector."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(span + 2 * BUCKET, generator=generator)
    cut = int(torch.randint(1, len(whole) - 1, (1,), generator=generator))
    first, second = whole[:cut].clone(), whole[cut:].to(torch.bfloat16)
    return Scattered([first, second], [0, cut + 3], len(whole) + 3).part(slice(BUCKET, BUCKET + span))


def message_of(count: int, nbytes: int) -> torch.Tensor:
    """Rows with something else behind them, as checksums are."""
    return torch.full((count, nbytes + 8), 255, dtype=torch.uint8)[:, :nbytes]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Parts, elements of each, from one to the next, and those of a scale bucket."""
    bucket, numel = draw(st.sampled_from([BUCKET, BUCKET, 12, 20])), draw(st.integers(1, 5 * BUCKET))
    whole = -(-numel // bucket) * bucket
    return draw(st.integers(1, 4)), numel, whole + bucket * draw(st.integers(0, 3)), bucket


def codes(code: str, bits: int, stochastic: bool, bucket: int = BUCKET) -> tuple[Any, Any, Any, Any, Any]:
    """The ops for one vector and for parts, encode and decode; and the length of a payload.

    Those that decode, and the length, take (bits, bucket) in every code.
    """
    settings = (bits, bucket, stochastic, 7)
    if code == "sparse":
        return (
            lambda x, ids, **more: cuda_ext.sparse_encode(x, 2**bits, **more),
            lambda x, stride, ids, **more: cuda_ext.sparse_encode_parts(x, stride, 2**bits, **more),
            lambda out, payload, bits, bucket: cuda_ext.sparse_decode_into(out, payload, 2**bits),
            lambda out, payloads, stride, bits, bucket: cuda_ext.sparse_decode_parts_into(
                out, payloads, stride, 2**bits
            ),
            lambda numel, bits, bucket: cuda_ext.sparse_bytes(numel, 2**bits),
        )
    if code == "rotated":
        return (
            lambda x, ids, **more: cuda_ext.encode_rotated(x, *settings, **more),
            lambda x, stride, ids, **more: cuda_ext.encode_rotated_parts(x, stride, *settings, **more),
            cuda_ext.decode_rotated_into,
            cuda_ext.decode_rotated_parts_into,
            cuda_ext.rotated_bytes,
        )
    return (
        lambda x, ids, **more: cuda_ext.encode(x, *settings, ids, **more),
        lambda x, stride, ids, **more: cuda_ext.encode_parts(x, stride, *settings, ids, **more),
        cuda_ext.decode_into,
        cuda_ext.decode_parts_into,
        cuda_ext.payload_bytes,
    )


@given(
    shapes(), st.sampled_from(CODES), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 2**31)
)
def test_each_part_is_coded_as_by_itself(
    shape: tuple[int, int, int, int],
    code: str,
    bits: int,
    stochastic: bool,
    has_feedback: bool,
    seed: int,
) -> None:
    count, numel, stride, bucket = shape
    code, span = "uniform" if bucket != BUCKET else code, (count - 1) * stride + numel
    encode, encode_parts, decode_into, decode_parts_into, payload_bytes = codes(
        code, bits, stochastic, bucket
    )
    x, ids = vector_of(span, seed), torch.arange(-(-span // bucket)) * 3 + 5
    owed = torch.randn(span, generator=torch.Generator().manual_seed(seed)) if has_feedback else None
    owed_of_parts = owed.clone() if owed is not None else None
    feedback = {} if owed is None else {"alpha": 0.5, "beta": 0.9}
    payloads = message_of(count, payload_bytes(numel, bits, bucket))
    encode_parts(x, stride, ids, residual=owed_of_parts, out=payloads, **feedback)

    decoded, decoded_of_parts = (vector_of(span, seed + 1) for _ in range(2))
    decode_parts_into(decoded_of_parts, payloads, stride, bits, bucket)
    for k, payload in enumerate(payloads):
        part = slice(k * stride, k * stride + numel)
        of_part = ids[part.start // bucket : -(-part.stop // bucket)]
        own = None if owed is None else owed[part]
        assert torch.equal(payload, encode(x.part(part), of_part, residual=own, **feedback))
        decode_into(decoded.part(part), payload.contiguous(), bits, bucket)
    assert owed is None or torch.equal(owed, owed_of_parts)
    assert torch.equal(decoded.gathered(), decoded_of_parts.gathered())
    behind = payloads.as_strided((count, 8), payloads.stride(), payloads.shape[1])
    assert bool((behind == 255).all())


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": BUCKET}, "stride must be a multiple of"),
        ({"stride": 2**56}, "numel must"),
        ({"residual": torch.zeros(4 * BUCKET)}, "residual must have"),
        ({"out": torch.zeros(2, 5, dtype=torch.uint8)}, "payloads must have rows of"),
        ({"out": torch.zeros(0, 5, dtype=torch.uint8)}, "at least one row"),
    ],
)
def test_what_does_not_fit_is_refused(code: str, changes: dict[str, Any], message: str) -> None:
    encode_parts, payload_bytes = codes(code, 2, True)[1::3]
    x = torch.randn(5 * BUCKET)

    def arguments(stride: int = 3 * BUCKET, **others: Any) -> dict[str, Any]:
        nbytes = payload_bytes(max(len(x) - stride, 0), 2, BUCKET)
        out = torch.zeros(2, nbytes, dtype=torch.uint8)
        return {
            "stride": stride,
            "residual": torch.zeros(len(x)),
            "out": out,
            "ids": torch.arange(5),
            **others,
        }

    encode_parts(x, **arguments())
    with pytest.raises(RuntimeError, match=message):
        encode_parts(x, **arguments(**changes))


@pytest.mark.parametrize("code", ["uniform", "rotated"])
def test_parts_begin_where_buckets_do(code: str) -> None:
    encode_parts, payload_bytes = codes(code, 2, True)[1::3]
    x, stride = torch.randn(5 * BUCKET), 3 * BUCKET - 8
    out = torch.zeros(2, payload_bytes(len(x) - stride, 2, BUCKET), dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="stride must be a multiple of 64"):
        encode_parts(x, stride, torch.arange(5), out=out)


def test_payloads_must_not_share_memory_with_what_is_read() -> None:
    x = torch.randn(5 * BUCKET)
    bytes_of_x = x.view(torch.uint8)
    payloads = bytes_of_x[: 2 * cuda_ext.payload_bytes(2 * BUCKET, 2, BUCKET)].view(2, -1)
    with pytest.raises(RuntimeError, match="must not share memory"):
        cuda_ext.encode_parts(x, 3 * BUCKET, 2, BUCKET, False, 0, out=payloads)
    with pytest.raises(RuntimeError, match="must not share memory"):
        cuda_ext.decode_parts_into(x, payloads, 3 * BUCKET, 2, BUCKET)
