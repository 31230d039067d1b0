"""What a round does to parameters, without ranks."""

import numpy as np
import torch
from layouts import bucket_of

from mqgrad.hook.layout_table import LayoutTable
from mqgrad.hook.round_memory import RoundMemory


def test_slow_momentum_is_rounded_alike_on_every_processor() -> None:
    """Every rank computes it, and nothing compares replicas afterwards. NumPy fuses no operations; torch does, where
    the processor can."""
    parameter, first, second = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0)).unbind()
    table = LayoutTable(bucket_size=512, world_size=2)
    bucket_of(table, [parameter])
    memory = RoundMemory(0.3, table, variance_reduced=False)
    memory.begin(0)
    expected = parameter.numpy().copy()
    for mean in (first, second):
        memory.go_on({0: mean.clone()}, iterations=4, period=4)
    expected -= first.numpy()
    expected -= np.float32(0.3) * first.numpy() + second.numpy()
    np.testing.assert_array_equal(parameter.numpy(), expected)


def test_the_first_of_a_buckets_parameters_that_has_moved_is_told() -> None:
    parameters = torch.zeros(4, 700).unbind()
    table = LayoutTable(bucket_size=512, world_size=2)
    bucket_of(table, list(parameters))
    memory = RoundMemory(0.0, table, variance_reduced=False)
    for key in range(4):
        memory.begin(key)
    parameters[0][5] = torch.nan
    memory.begin(0)
    assert memory.seems_moved(range(4)) is None
    parameters[2][0] = 1.0
    parameters[3][0] = 1.0
    assert memory.seems_moved(range(4)) == 2


def test_what_is_loaded_is_where_the_parameters_are() -> None:
    """A checkpoint is often read with ``map_location="cpu"``; a bucket that nobody has used stays away."""
    parameter, table = torch.zeros(700), LayoutTable(bucket_size=512, world_size=2)
    bucket_of(table, [parameter])
    memory = RoundMemory(0.5, table, variance_reduced=True)
    memory.begin(0)
    saved = memory.state_dict()
    torch.utils.swap_tensors(parameter, torch.zeros(700, device="meta"))
    memory.load_state_dict(saved)
    assert memory.state_dict()["anchors"][0].device.type == "meta"
