"""Vectors that lie in several tensors: the same bytes, residuals and values as of one, and nothing else touched."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from built import needs_extension
from hypothesis import given
from hypothesis import strategies as st
from same_bits import same
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import Scattered, Vector, library


class Code(NamedTuple):
    """One of the codes, in each of its settings: (bits, bucket_size), (elements_per_bit,) or none."""

    settings: st.SearchStrategy[tuple[Any, ...]]
    encode: Callable[..., Tensor]
    encode_nearest: Callable[..., Tensor]
    """For feedback: the same, unless it rounds to nearest there."""
    decode: Callable[..., Tensor]
    decode_into: Callable[..., None]
    decode_mean_into: Callable[..., None]


def encode_uniform(x: Vector, settings: tuple[Any, ...], stochastic: bool = True, **kwargs: Any) -> Tensor:
    return cuda_ext.encode(x, *settings, stochastic, 7, **kwargs)


def encode_rotated(x: Vector, settings: tuple[Any, ...], **kwargs: Any) -> Tensor:
    return cuda_ext.encode_rotated(x, *settings, True, 7, **kwargs)


def encode_sparse(x: Vector, settings: tuple[Any, ...], **kwargs: Any) -> Tensor:
    return cuda_ext.sparse_encode(x, *settings, **kwargs)


def encode_bfloat16(x: Vector, settings: tuple[Any, ...], **kwargs: Any) -> Tensor:
    return cuda_ext.encode_bfloat16(x, **kwargs)


CODES = {
    "uniform": Code(
        st.tuples(st.integers(1, 8), st.sampled_from([3, 8, 512])),
        encode_uniform,
        functools.partial(encode_uniform, stochastic=False),
        lambda payload, numel, settings: cuda_ext.decode(payload, numel, *settings),
        lambda out, payload, settings: cuda_ext.decode_into(out, payload, *settings),
        lambda out, payloads, settings: cuda_ext.decode_mean_into(out, payloads, *settings),
    ),
    "rotated": Code(
        st.tuples(st.integers(1, 4), st.sampled_from([8, 512])),
        encode_rotated,
        encode_rotated,
        lambda payload, numel, settings: cuda_ext.decode_rotated(payload, numel, *settings),
        lambda out, payload, settings: cuda_ext.decode_rotated_into(out, payload, *settings),
        lambda out, payloads, settings: cuda_ext.decode_rotated_mean_into(out, payloads, *settings),
    ),
    "sparse": Code(
        st.tuples(st.sampled_from([2, 16, 64])),
        encode_sparse,
        encode_sparse,
        lambda payload, numel, settings: cuda_ext.sparse_decode(payload, numel, *settings),
        lambda out, payload, settings: cuda_ext.sparse_decode_into(out, payload, *settings),
        lambda out, payloads, settings: cuda_ext.sparse_decode_mean_into(out, payloads, *settings),
    ),
    "bfloat16": Code(
        st.just(()),
        encode_bfloat16,
        encode_bfloat16,
        lambda payload, numel, settings: cuda_ext.decode_bfloat16(payload, numel),
        lambda out, payload, settings: cuda_ext.decode_bfloat16_into(out, payload),
        lambda out, payloads, settings: cuda_ext.decode_bfloat16_mean_into(out, payloads),
    ),
}
GAINS = {"alpha": 0.7, "beta": 0.9}
DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64])
LENGTHS = st.sampled_from([0, 1, 7, 30, 511, 1500, 5000])


@st.composite
def vectors(draw: st.DrawFn) -> Scattered:
    """Tensors of several types with gaps between them, or a part of such a vector."""
    end, tensors, offsets = 0, [], []
    for seed in range(draw(st.integers(1, 4))):
        numel = draw(LENGTHS)
        values = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
        tensors.append(values.to(draw(DTYPES)))
        offsets.append(end + draw(st.sampled_from([0, 0, 3, 600])))
        end = offsets[-1] + numel
    vector = Scattered(tensors, offsets, end + draw(st.sampled_from([0, 1, 700])))
    start = draw(st.integers(0, vector.length))
    return draw(st.sampled_from([vector, vector.part(slice(start, draw(st.integers(start, vector.length))))]))


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
@given(vectors(), st.data())
def test_as_of_one_tensor(code: Code, vector: Scattered, data: st.DataObject) -> None:
    """Gathered first, and decoded, copied back."""
    settings, one = data.draw(code.settings), vector.gathered()
    payload = code.encode(one, settings)
    assert torch.equal(code.encode(vector, settings), payload)
    ours, expected = torch.linspace(-1, 1, len(one)), torch.linspace(-1, 1, len(one))
    payload = code.encode_nearest(one, settings, residual=expected, **GAINS)
    memory = torch.full((len(payload) + 9,), 3, dtype=torch.uint8)
    out = memory[3:-6]
    assert code.encode_nearest(vector, settings, residual=ours, **GAINS, out=out) is out
    assert torch.equal(out, payload)
    assert same(ours, expected)
    assert bool((memory[:3] == 3).all() & (memory[-6:] == 3).all())
    copies = Scattered([tensor.clone() for tensor in vector.tensors], vector.offsets, vector.length)
    code.decode_into(vector, payload, settings)
    copies.copy_(code.decode(payload, len(one), settings))
    for tensor, copy in zip(vector.tensors, copies.tensors, strict=True):
        assert same(tensor, copy)


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
@given(vectors(), st.integers(1, 4), st.data())
def test_means_as_of_one_tensor(code: Code, vector: Scattered, count: int, data: st.DataObject) -> None:
    """Decoded one after another, added up from zero, divided, copied back; payloads may lie within messages."""
    settings, one = data.draw(code.settings), vector.gathered()
    rows = [code.encode(one * k, settings) for k in range(1, count + 1)]
    gap = data.draw(st.integers(0, 9))
    payloads = torch.nn.functional.pad(torch.stack(rows), (0, gap), value=255)[:, : len(rows[0])]
    mean = torch.zeros_like(one)
    for row in rows:
        mean += code.decode(row, len(one), settings)
    copies = Scattered([tensor.clone() for tensor in vector.tensors], vector.offsets, vector.length)
    copies.copy_(mean / count)
    code.decode_mean_into(vector, payloads, settings)
    for tensor, copy in zip(vector.tensors, copies.tensors, strict=True):
        assert same(tensor, copy)


@pytest.mark.filterwarnings("ignore:mqgrad runs on its slow torch reference")
@pytest.mark.parametrize("name", CODES)
def test_the_reference_takes_scattered_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = Scattered([torch.randn(500), torch.randn(30)], [0, 512], 600)
    settings = {"bfloat16": (), "sparse": (2,)}.get(name, (2, 512))
    code = CODES[name]
    expected = code.encode_nearest(vector, settings, residual=torch.ones(600), **GAINS)
    monkeypatch.setattr(library, "IMPLEMENTATION", "reference")
    monkeypatch.setattr(library, "COMPILED_DEVICES", ())
    assert torch.equal(code.encode_nearest(vector, settings, residual=torch.ones(600), **GAINS), expected)
    code.decode_into(vector, expected, settings)
    values = vector.gathered()
    assert same(values[:500], code.decode(expected, 600, settings)[:500])
    code.decode_mean_into(vector, torch.stack([expected, expected]), settings)
    assert torch.equal(vector.gathered(), values)  # but for signs of zero: sums start from +0
    assert not values[500:512].any()


def test_a_copy_that_goes_on_to_the_end_of_the_bucket() -> None:
    vector = Scattered([torch.arange(1.0, 12.0), torch.tensor([20.0, 21.0])], [0, 16], 32)
    assert vector.continued(8).tolist() == [
        *range(1, 12), 9, 10, 11, 9, 10, 20, 21, 20, 21, 20, 21, 20, 21, *[0] * 8
    ]  # fmt: skip
    part = vector.part(slice(8, 24)).continued(8)
    assert torch.equal(part, vector.continued(8)[8:24])


def test_same_bytes_on_any_number_of_threads() -> None:
    sizes, before, results = (70_001, 3, 90_000), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            tensors = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in sizes]
            vector = Scattered(tensors, [0, 70_100, 70_200], 161_000)
            payload = cuda_ext.encode(vector, 4, 512, False, 0)
            cuda_ext.decode_into(vector, payload, 4, 512)
            results.append((payload, vector.gathered()))
    finally:
        torch.set_num_threads(before)
    for payload, values in results[1:]:
        assert torch.equal(payload, results[0][0])
        assert torch.equal(values, results[0][1])


def test_a_part_has_the_tensors_that_lie_in_it() -> None:
    tensors = [torch.arange(5.0), torch.arange(10.0, 13.0), torch.arange(20.0, 24.0)]
    vector = Scattered(tensors, [0, 8, 12], 20)
    assert vector.part(slice(4, 9)).gathered().tolist() == [4, 0, 0, 0, 10]
    assert vector.part(slice(16, 20)).gathered().tolist() == [0, 0, 0, 0]
    assert vector.part(slice(2, 18)).part(slice(7, 12)).gathered().tolist() == [11, 12, 0, 20, 21]
    assert len(vector.part(slice(9, 13)).tensors) == 2


@pytest.mark.parametrize(
    ("tensors", "offsets", "message"),
    [
        ([torch.zeros(8)[::2]], [0], "must be contiguous"),
        ([torch.zeros(4, dtype=torch.int32)], [0], "float32, float64, float16 or bfloat16"),
        ([torch.zeros(2, 2)], [0], "1 dimension"),
        ([torch.zeros(4), torch.zeros(4)], [0, 3], "ends at 4 before one that begins at 3"),
        ([torch.zeros(4), torch.zeros(4)], [4, 0], "ends at 8 before one that begins at 0"),
        ([torch.zeros(4)], [0, 4], "zip"),
    ],
)
def test_a_wrong_vector_is_refused(tensors: list[Tensor], offsets: list[int], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Scattered(tensors, offsets, 8)


@needs_extension
def test_the_ops_themselves_guard_the_memory() -> None:
    payload, two = cuda_ext.encode(torch.zeros(8), 4, 8, False, 0), [torch.zeros(4), torch.zeros(4)]
    for offsets in ([0, 3], [4, 0], [0], [0, 2**57], [-(2**62), 0]):
        with pytest.raises(RuntimeError, match=r"cannot begin at|but 1 offsets"):
            torch.ops.mqgrad.decode_into(two, offsets, payload, 8, 4, 8)


@needs_extension
def test_memory_that_is_written_twice_is_refused() -> None:
    floats, payload = torch.zeros(20), cuda_ext.encode(torch.zeros(20), 4, 8, False, 0)
    for second in (floats[:10], floats[9:19]):
        with pytest.raises(RuntimeError, match="must not share memory"):
            cuda_ext.decode_into(Scattered([floats[:10], second], [0, 10], 20), payload, 4, 8)
    cuda_ext.decode_into(Scattered([floats[10:], floats[:10]], [0, 10], 20), payload, 4, 8)


@needs_extension
def test_memory_of_the_payload_is_refused() -> None:
    floats = torch.zeros(40)
    memory, vector = floats.view(torch.uint8), Scattered([floats[:8]], [0], 8)
    with pytest.raises(RuntimeError, match="payload must not share memory with x"):
        cuda_ext.encode(vector, 4, 8, False, 0, out=memory[31:39])
    with pytest.raises(RuntimeError, match="payload must not share memory with x"):
        cuda_ext.decode_into(vector, memory[31:39], 4, 8)
    with pytest.raises(RuntimeError, match="residual must not share memory with x"):
        cuda_ext.encode(vector, 4, 8, False, 0, residual=floats[7:15])
