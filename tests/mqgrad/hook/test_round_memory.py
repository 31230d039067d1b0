"""What a round does to parameters, without ranks."""

import numpy as np
import torch
from layouts import bucket_of

from mqgrad.hook.round_memory import RoundMemory
from mqgrad.layout_table import LayoutTable


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
