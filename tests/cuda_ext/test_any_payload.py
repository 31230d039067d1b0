"""Payloads of any bytes and any size: every op raises an error that names the size, or does as the reference does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from built import needs_extension
from hypothesis import given, settings
from hypothesis import strategies as st
from same_bits import same
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import library

pytestmark = [
    needs_extension,
    pytest.mark.filterwarnings("ignore:mqgrad runs on its slow torch reference"),
]

Layout = tuple[int, ...]


class Family(NamedTuple):
    """Payloads of one code."""

    layout: st.SearchStrategy[Layout]
    """Number of elements, then what else the size depends on."""
    size: Callable[..., int]


SIZES = st.integers(0, 700) | st.sampled_from([0, 1, 2, 2047, 2048, 2049, 4100])
UNIFORM = Family(
    st.tuples(SIZES, st.integers(1, 8), st.integers(1, 40) | st.sampled_from([64, 512, 2**62])),
    cuda_ext.payload_bytes,
)
ROTATED = Family(
    st.tuples(SIZES, st.integers(1, 4), st.sampled_from([8, 16, 128, 512, 1024])), cuda_ext.rotated_bytes
)
SPARSE = Family(st.tuples(SIZES, st.sampled_from([1, 2, 3, 8, 64])), cuda_ext.sparse_bytes)
BFLOAT16 = Family(st.tuples(SIZES), lambda numel: 2 * numel)
MINMAX = Family(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 8)), cuda_ext.minmax_bytes)

# What an op returns, or writes to floats, when it is given a payload, or a matrix of them.
Receive = Callable[[Tensor, Tensor, Layout], Tensor | None]
ONE: dict[str, tuple[Family, Receive]] = {
    "decode": (UNIFORM, lambda p, floats, layout: cuda_ext.decode(p, *layout)),
    "decode_into": (UNIFORM, lambda p, floats, layout: cuda_ext.decode_into(floats, p, *layout[1:])),
    "decode_add_": (UNIFORM, lambda p, floats, layout: cuda_ext.decode_add_(floats, p, *layout[1:])),
    "decode_rotated": (ROTATED, lambda p, floats, layout: cuda_ext.decode_rotated(p, *layout)),
    "decode_rotated_into": (
        ROTATED,
        lambda p, floats, layout: cuda_ext.decode_rotated_into(floats, p, *layout[1:]),
    ),
    "decode_rotated_add_": (
        ROTATED,
        lambda p, floats, layout: cuda_ext.decode_rotated_add_(floats, p, *layout[1:]),
    ),
    "sparse_decode": (SPARSE, lambda p, floats, layout: cuda_ext.sparse_decode(p, *layout)),
    "sparse_decode_into": (
        SPARSE,
        lambda p, floats, layout: cuda_ext.sparse_decode_into(floats, p, *layout[1:]),
    ),
    "sparse_decode_add_": (
        SPARSE,
        lambda p, floats, layout: cuda_ext.sparse_decode_add_(floats, p, *layout[1:]),
    ),
    "decode_bfloat16": (BFLOAT16, lambda p, floats, layout: cuda_ext.decode_bfloat16(p, *layout)),
    "decode_bfloat16_into": (
        BFLOAT16,
        lambda p, floats, layout: cuda_ext.decode_bfloat16_into(floats, p),
    ),
    "decode_bfloat16_add_": (
        BFLOAT16,
        lambda p, floats, layout: cuda_ext.decode_bfloat16_add_(floats, p),
    ),
    "decode_minmax": (MINMAX, lambda p, floats, layout: cuda_ext.decode_minmax(p, *layout)),
}
MANY: dict[str, tuple[Family, Receive]] = {
    "reduce_encode": (
        UNIFORM,
        lambda p, floats, layout: cuda_ext.reduce_encode(p, *layout, True, 3),
    ),
    "reduce_encode, feedback": (
        UNIFORM,
        lambda p, floats, layout: cuda_ext.reduce_encode(p, *layout, False, 3, residual=floats, beta=0.9),
    ),
    "decode_mean_into": (
        UNIFORM,
        lambda p, floats, layout: cuda_ext.decode_mean_into(floats, p, *layout[1:]),
    ),
    "decode_rotated_mean_into": (
        ROTATED,
        lambda p, floats, layout: cuda_ext.decode_rotated_mean_into(floats, p, *layout[1:]),
    ),
    "sparse_decode_mean_into": (
        SPARSE,
        lambda p, floats, layout: cuda_ext.sparse_decode_mean_into(floats, p, *layout[1:]),
    ),
    "decode_bfloat16_mean_into": (
        BFLOAT16,
        lambda p, floats, layout: cuda_ext.decode_bfloat16_mean_into(floats, p),
    ),
    "reduce_encode_rotated": (
        ROTATED,
        lambda p, floats, layout: cuda_ext.reduce_encode_rotated(p, *layout, True, 3),
    ),
    "reduce_encode_rotated, feedback": (
        ROTATED,
        lambda p, floats, layout: cuda_ext.reduce_encode_rotated(p, *layout, False, 3, residual=floats),
    ),
    "reduce_encode_bfloat16": (
        BFLOAT16,
        lambda p, floats, layout: cuda_ext.reduce_encode_bfloat16(p, *layout),
    ),
    "reduce_encode_bfloat16, feedback": (
        BFLOAT16,
        lambda p, floats, layout: cuda_ext.reduce_encode_bfloat16(p, *layout, residual=floats, alpha=0.5),
    ),
}


@contextmanager
def reference_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "IMPLEMENTATION", "reference")
        patch.setattr(library, "COMPILED_DEVICES", ())
        yield


def random_bytes(shape: tuple[int, ...], seed: int) -> Tensor:
    """Of any value, or with many zeros or ones, which are small numbers, or NaNs and the largest indices."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    masked = torch.rand(shape, generator=generator) < (0.0, 0.0, 0.7, 0.7)[seed % 4]
    return raw.masked_fill(masked, 255 * (seed % 2))


class Outcome(NamedTuple):
    error: str
    returned: Tensor
    floats: Tensor

    def __eq__(self, other: object) -> bool:
        """All bits, except that any NaN is as good as another."""
        return (
            isinstance(other, Outcome)
            and self.error == other.error
            and same(self.returned, other.returned)
            and same(self.floats, other.floats)
        )


def outcome(receive: Receive, payload: Tensor, layout: Layout) -> Outcome:
    floats = torch.randn(layout[0], generator=torch.Generator().manual_seed(1))
    try:
        returned = receive(payload, floats, layout)
    except ValueError as error:
        return Outcome(str(error), torch.empty(0), floats)
    return Outcome("", torch.empty(0) if returned is None else returned, floats)


OFF_BY = st.just(0) | st.integers(-9, 9) | st.sampled_from([-64, 64, 4096])


@pytest.mark.parametrize("op", [*ONE, *MANY])
@settings(max_examples=60)
@given(data=st.data(), off_by=OFF_BY, rows=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_as_the_reference_or_refused(op: str, data: st.DataObject, off_by: int, rows: int, seed: int) -> None:
    family, receive = (ONE | MANY)[op]
    layout = data.draw(family.layout)
    size = family.size(*layout)
    length = max(0, size + off_by)
    payload = random_bytes((rows, length) if op in MANY else (length,), seed)
    ours = outcome(receive, payload, layout)
    with reference_only():
        assert ours == outcome(receive, payload, layout)
    fits = length == size and (rows > 0 or op in ONE)
    assert bool(ours.error) != fits
    assert fits or f"got {tuple(payload.shape)}" in ours.error
