"""Gradients copied chunk by chunk: the vector is that of one copy, and what is copied back is in place."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import layout_of

from mqgrad.codec import Codec
from mqgrad.compressors import runs
from mqgrad.compressors.gradient_vector import GradientVector
from mqgrad.compressors.plans import Plan, planned
from mqgrad.layout import Layout
from mqgrad.widths import Width

BUCKET = 8
CODEC = Codec(bucket_size=BUCKET)


def plan_in_chunks(layout: Layout, chunk_bytes: int, bits: Width, parameter_bits: Any = None) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "CHUNK_BYTES", chunk_bytes)
        return planned(layout, CODEC, bits, parameter_bits, BUCKET)


NUMELS = st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(any)


@given(
    NUMELS, st.integers(1, 4), st.sampled_from([8, 40, 2**17]), st.sampled_from([0.25, 4, 8, None]), st.data()
)
def test_all_chunks_are_the_vector_that_one_copy_makes(
    numels: list[int], world_size: int, chunk_bytes: int, bits: Width | None, data: st.DataObject
) -> None:
    """Every element once, in the chunk of its shard; padding repeats elements where the code wants that."""
    gradients = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in numels]
    layout = layout_of(gradients, bucket_size=BUCKET, world_size=world_size)
    plan = plan_in_chunks(layout, chunk_bytes, bits or 0, None if bits else (4,) * len(numels))
    vector = GradientVector(layout, plan, gradients)
    vector.flat[: layout.end] = torch.nan
    for i in data.draw(st.permutations(range(len(plan.chunks)))):
        vector.pack(plan.chunks[i].copies)
    assert torch.equal(vector.flat, layout.pack(gradients, fill_padding=bits != 0.25))


@given(
    NUMELS,
    st.integers(1, 4),
    st.sampled_from([8, 40, 2**17]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_every_gradient_is_given_back(
    numels: list[int], world_size: int, chunk_bytes: int, dtype: torch.dtype
) -> None:
    """Chunk by chunk, of any type, and where a gradient is not contiguous."""
    gradients = [
        torch.zeros(n, 2, dtype=dtype).T if n % 2 else torch.zeros(2 * n, dtype=dtype) for n in numels
    ]
    layout = layout_of(gradients, bucket_size=BUCKET, world_size=world_size)
    plan = plan_in_chunks(layout, chunk_bytes, 4)
    vector = GradientVector(layout, plan, gradients)
    vector.flat[:] = torch.arange(layout.numel) % 251
    for chunk in plan.chunks:
        vector.unpack(chunk.copies)
    vector.finish()
    for gradient, expected in zip(gradients, layout.views(vector.flat), strict=True):
        assert torch.equal(gradient.reshape(-1).float(), expected)
