"""Gradients as one vector: read and written where they are."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import layout_of

from mqgrad.compressors.gradient_vector import GradientVector

BUCKET = 8
NUMELS = st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(any)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def gradients_of(numels: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """One in three is contiguous."""
    values = [torch.randn(2 * n, generator=torch.Generator().manual_seed(n)).to(dtype) for n in numels]
    return [(x, x.view(-1, 2).T, x[::2])[len(x) // 2 % 3] for x in values]


@given(NUMELS, st.integers(1, 4), DTYPES, st.data())
def test_any_part_is_that_of_one_copy(
    numels: list[int], world_size: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    gradients = gradients_of(numels, dtype)
    layout = layout_of(gradients, bucket_size=BUCKET, world_size=world_size)
    start = data.draw(st.integers(0, layout.numel // BUCKET)) * BUCKET
    part = slice(start, start + data.draw(st.integers(0, (layout.numel - start) // BUCKET)) * BUCKET)
    vector = GradientVector(layout, gradients)
    assert torch.equal(vector.part(part).gathered(), layout.pack(gradients)[part])


@given(NUMELS, st.integers(1, 4), DTYPES)
def test_every_gradient_is_given_back(numels: list[int], world_size: int, dtype: torch.dtype) -> None:
    """Shard by shard."""
    gradients = gradients_of(numels, dtype)
    layout = layout_of(gradients, bucket_size=BUCKET, world_size=world_size)
    vector, values = GradientVector(layout, gradients), torch.arange(layout.numel) % 251.0
    for start in range(0, layout.numel, layout.shard_numel):
        part = slice(start, start + layout.shard_numel)
        vector.part(part).copy_(values[part])
    vector.finish()
    for gradient, expected in zip(gradients, layout.views(values), strict=True):
        assert torch.equal(gradient.reshape(-1).float(), expected)
