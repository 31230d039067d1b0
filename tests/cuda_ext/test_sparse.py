"""The sparse code of widths below one bit: bytes, errors, hostile payloads."""

import math
from typing import Any

import pytest
import torch
from built import needs_extension
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from same_bits import assert_same
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import checks, reference_sparse

WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # elements per bit
NUMELS = (1, 2, 7, 63, 64, 512, 4100, 40_001, 200_003)


def heavy_tailed(numel: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()


def roundtrip(x: Tensor, width: int) -> Tensor:
    return cuda_ext.sparse_decode(cuda_ext.sparse_encode(x, width), x.numel(), width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("numel", NUMELS)
def test_a_payload_takes_no_more_than_its_width(width: int, numel: int) -> None:
    size = cuda_ext.sparse_bytes(numel, width)
    assert len(cuda_ext.sparse_encode(heavy_tailed(numel), width)) == size
    one_entry = 8 + 1 + (numel.bit_length() + 4 + 7) // 8
    assert size <= max(numel / 8 / width, one_entry)
    if numel > 100_000:  # and makes use of it
        assert size > 0.97 * numel / 8 / width


@needs_extension
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_kernels_give_the_bytes_of_the_reference(width: int, dtype: torch.dtype) -> None:
    for numel in NUMELS:
        x = heavy_tailed(numel, seed=width).to(dtype)
        x[numel // 3 : numel // 2] = 0.5  # ties, of which some may lie at the threshold
        payload = cuda_ext.sparse_encode(x, width)
        assert_same(payload, reference_sparse.sparse_encode(x, width))
        decoded = cuda_ext.sparse_decode(payload, numel, width)
        assert_same(decoded, reference_sparse.sparse_decode(payload, numel, width))
        ours, expected = torch.full((numel,), 0.01), torch.full((numel,), 0.01)
        for alpha, beta in ((1.0, 1.0), (0.5, 0.9)):
            payload = cuda_ext.sparse_encode(x, width, residual=ours, alpha=alpha, beta=beta)
            expected_payload = reference_sparse.sparse_encode(
                x, width, residual=expected, alpha=alpha, beta=beta
            )
            assert_same(payload, expected_payload)
            assert_same(ours, expected)


@given(
    hnp.arrays("float32", st.integers(0, 700), elements=st.floats(width=32)),
    st.sampled_from(WIDTHS),
)
def test_any_floats(values: Any, width: int) -> None:
    x = torch.from_numpy(values)
    payload = cuda_ext.sparse_encode(x, width)
    assert len(payload) == cuda_ext.sparse_bytes(len(x), width)
    assert_same(payload, reference_sparse.sparse_encode(x, width))
    decoded = cuda_ext.sparse_decode(payload, len(x), width)
    assert_same(decoded, reference_sparse.sparse_decode(payload, len(x), width))
    if not x.isfinite().all():
        assert decoded.isnan().all()
        return
    kept = decoded != 0
    assert int(kept.sum()) <= cuda_ext.sparse_count(len(x), width) if len(x) else True
    # What is kept is never sent with another sign, nor as twice itself or more.
    ratio = decoded[kept].double() / x[kept].double()
    assert ((ratio > 0) & (ratio < 2)).all()
    if x.any():
        assert (decoded.double() - x.double()).norm() < x.double().norm()


@given(
    st.data(),
    st.sampled_from(WIDTHS),
    st.integers(0, 600),
)
def test_any_bytes_decode_to_something_and_touch_nothing_else(data: Any, width: int, numel: int) -> None:
    size = cuda_ext.sparse_bytes(numel, width)
    payload = torch.tensor(list(data.draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    decoded = cuda_ext.sparse_decode(payload, numel, width)
    assert decoded.isnan().all() or decoded.isfinite().all()
    assert_same(decoded, reference_sparse.sparse_decode(payload, numel, width))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("numel", [5000, 70_000])
def test_flipped_bytes_harm_nothing(width: int, numel: int) -> None:
    generator = torch.Generator().manual_seed(width)
    payload = cuda_ext.sparse_encode(heavy_tailed(numel), width)
    for _ in range(20):
        damaged = payload.clone()
        where = torch.randint(len(payload), (8,), generator=generator)
        damaged[where] = torch.randint(256, (8,), generator=generator, dtype=torch.uint8)
        decoded = cuda_ext.sparse_decode(damaged, numel, width)
        assert_same(decoded, reference_sparse.sparse_decode(damaged, numel, width))
        mean = torch.full((numel,), 9.0)
        cuda_ext.sparse_decode_mean_into(mean, torch.stack([payload, damaged, payload]), width)
        other = cuda_ext.sparse_decode(payload, numel, width)
        assert_same(mean, (other + decoded + other) / 3)


@pytest.mark.parametrize("width", WIDTHS)
def test_exactly_the_largest_are_kept(width: int) -> None:
    numel = 100_000
    x = heavy_tailed(numel)
    count = cuda_ext.sparse_count(numel, width)
    kept = roundtrip(x, width).nonzero().flatten()
    assert len(kept) == count
    assert set(kept.tolist()) == set(x.abs().topk(count).indices.tolist())


def test_of_equal_magnitudes_the_first_are_kept() -> None:
    x = torch.ones(100_000)
    x[::2] = -1
    kept = roundtrip(x, 64)
    count = cuda_ext.sparse_count(100_000, 64)
    assert torch.equal(kept[:count], x[:count])
    assert not kept[count:].any()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("numel", [1, 512, 100_000])
def test_zeros_and_a_lone_element_are_exact(width: int, numel: int) -> None:
    x = torch.zeros(numel)
    assert torch.equal(roundtrip(x, width), x)
    x[numel // 2] = -3e-39
    assert torch.equal(roundtrip(x, width), x)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_element_is_seen_and_its_residual_stays(bad: float) -> None:
    x, residual = heavy_tailed(5000), torch.ones(5000)
    x[77] = bad
    payload = cuda_ext.sparse_encode(x, 16, residual=residual)
    assert cuda_ext.sparse_decode(payload, 5000, 16).isnan().all()
    assert torch.equal(residual, torch.ones(5000))


@pytest.mark.parametrize("width", WIDTHS)
def test_sent_plus_owed_is_what_came_in_and_feedback_stays_bounded(width: int) -> None:
    numel = 5000
    residual, applied, exact = torch.zeros(numel), torch.zeros(numel).double(), torch.zeros(numel).double()
    owed, largest = [], 0.0
    for step in range(400):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(step)) + 0.1
        payload = cuda_ext.sparse_encode(x, width, residual=residual)
        applied += cuda_ext.sparse_decode(payload, numel, width).double()
        exact += x.double()
        owed.append(float(residual.norm()))
        largest = max(largest, float(x.norm()))
    torch.testing.assert_close(applied + residual.double(), exact, rtol=0, atol=2e-3)
    # Contraction by 1 - δ a step bounds what is owed by 2/δ gradients; δ is at least about the share that is kept.
    assert max(owed) < 2 * numel / cuda_ext.sparse_count(numel, width) * largest


def test_a_lower_width_never_errs_less() -> None:
    x = heavy_tailed(100_000)
    errors = [float((roundtrip(x, width) - x).norm()) for width in WIDTHS]
    assert errors == sorted(errors)


@needs_extension
def test_bytes_do_not_depend_on_threads() -> None:
    x, before = heavy_tailed(300_001), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            residual = x.flip(0).clone()
            results.append((cuda_ext.sparse_encode(x, 8, residual=residual), residual))
    finally:
        torch.set_num_threads(before)
    for payload, residual in results[1:]:
        assert_same(payload, results[0][0])
        assert_same(residual, results[0][1])


@needs_extension
def test_a_long_vector_in_pieces_is_coded_as_one() -> None:
    """Longer than what is sampled and than what a thread takes at a time; blocks lie across pieces and gaps."""
    whole = heavy_tailed(150_000)
    ends = [0, 40_001, 40_002, 66_000, 66_000, 150_000]
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.half]
    tensors = [
        whole[begin:end].to(dtype) for begin, end, dtype in zip(ends[:-1], ends[1:], dtypes, strict=True)
    ]
    offsets = [ends[0], *(begin + 7 for begin in ends[1:-1])]
    vector = cuda_ext.Scattered(tensors, offsets, 150_100)
    x = vector.gathered()
    for width in WIDTHS:
        ours, expected = x.flip(0).clone(), x.flip(0).clone()
        payload = cuda_ext.sparse_encode(vector, width, residual=ours, alpha=0.7)
        assert_same(payload, cuda_ext.sparse_encode(x, width, residual=expected, alpha=0.7))
        assert_same(ours, expected)
        payloads = torch.stack([payload, cuda_ext.sparse_encode(x.flip(0), width)])
        copies = [cuda_ext.Scattered([t.clone() for t in tensors], offsets, len(x)) for _ in range(2)]
        cuda_ext.sparse_decode_mean_into(copies[0], payloads, width)
        copies[1].copy_(sum(cuda_ext.sparse_decode(row, len(x), width) for row in payloads) / 2)
        assert_same(copies[0].gathered(), copies[1].gathered())


def test_more_bits_than_there_are_elements_to_send_do_no_harm() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2**18, generator=generator) * (torch.rand(2**18, generator=generator) < 0.01)
    errors = [float((roundtrip(x, width) - x).square().sum() / x.square().sum()) for width in WIDTHS]
    assert errors == sorted(errors)
    assert errors[0] < 0.02  # with levels down to the smallest element it was 0.07


X = torch.linspace(-1, 1, 400)
PAYLOAD = reference_sparse.sparse_encode(X, 4)
OUT = torch.empty_like(PAYLOAD)
PARTS = torch.empty(2, cuda_ext.sparse_bytes(100, 4), dtype=torch.uint8)
CALLS: dict[str, tuple[Any, ...]] = {
    "sparse_encode_into": (PAYLOAD.clone(), [X], [0], torch.zeros(400), 400, 4, 1.0, 0.5),
    "sparse_decode_mean_into": ([torch.empty(400)], [0], PAYLOAD.repeat(3, 1), 400, 4),
    "sparse_encode_parts_into": (PARTS, [X], [0], torch.zeros(400), 100, 300, 4, 1.0, 0.5),
    "sparse_decode_parts_into": ([torch.empty(400)], [0], torch.zeros_like(PARTS), 100, 300, 4),
    "sparse_decode": (PAYLOAD, 400, 4),
    "sparse_decode_add_": (torch.ones(400), PAYLOAD, 4),
}


@needs_extension
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.mqgrad, name).default, CALLS[name])


@needs_extension
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sparse_encode_into", (OUT, [X], [0], None, 400, 0, 1.0, 1.0)),
        ("sparse_encode_into", (OUT[1:], [X], [0], None, 400, 4, 1.0, 1.0)),
        ("sparse_encode_into", (OUT, [X[::2]], [0], None, 400, 4, 1.0, 1.0)),
        ("sparse_encode_into", (OUT, [X.int()], [0], None, 400, 4, 1.0, 1.0)),
        ("sparse_encode_into", (OUT, [X], [], None, 400, 4, 1.0, 1.0)),
        ("sparse_encode_into", (OUT, [X], [0], torch.zeros(399), 400, 4, 1.0, 1.0)),
        ("sparse_encode_into", (OUT, [X], [0], X, 400, 4, 1.0, 1.0)),
        ("sparse_encode_parts_into", (PARTS, [X], [0], None, 100, 99, 4, 1.0, 1.0)),
        ("sparse_encode_parts_into", (PARTS, [X], [0], torch.zeros(401), 100, 300, 4, 1.0, 1.0)),
        ("sparse_encode_parts_into", (PARTS[:, 1:], [X], [0], None, 100, 300, 4, 1.0, 1.0)),
        ("sparse_decode_parts_into", ([X], [0], PARTS, 100, 2**62, 4)),
        ("sparse_decode_parts_into", ([X], [0], PARTS, 300, 300, 1)),
        ("sparse_decode_mean_into", ([X], [0], PAYLOAD, 400, 4)),
        ("sparse_decode_mean_into", ([X], [0], PAYLOAD[:-1].repeat(2, 1), 400, 4)),
        ("sparse_decode_mean_into", ([X], [0], PAYLOAD.new_empty(0, len(PAYLOAD)), 400, 4)),
        ("sparse_decode", (PAYLOAD[:-1], 400, 4)),
        ("sparse_decode", (PAYLOAD, -1, 4)),
        ("sparse_decode_add_", (torch.ones(800), PAYLOAD, 4)),
    ],
)
def test_the_raw_ops_guard_their_memory(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError, match="mqgrad: "):
        getattr(torch.ops.mqgrad, name)(*arguments)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"elements_per_bit must be in 1\.\.64, got 65"):
        cuda_ext.sparse_encode(X, 65)
    with pytest.raises(TypeError, match=r"elements_per_bit must be an integer, got 2\.5"):
        cuda_ext.sparse_bytes(10, 2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="accumulator must be float32"):
        cuda_ext.sparse_decode_add_(X.double(), PAYLOAD, 4)


def test_indices_take_two_bits_more_than_their_share_says() -> None:
    layout = checks.sparse_layout(2**20, 16)
    bits_per_entry = 8 * layout.payload_bytes / layout.count
    assert bits_per_entry < 4 + math.log2(layout.numel / layout.count) + 2.1
