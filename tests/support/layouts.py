"""Layouts of parameters, without DDP around them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from mqgrad.hook.layout_table import LayoutTable
from mqgrad.layout import Layout


def layout_of(parameters: Sequence[torch.Tensor], *, bucket_size: int, world_size: int) -> Layout:
    """The layout of one DDP bucket with these parameters, in this order."""
    return bucket_of(LayoutTable(bucket_size=bucket_size, world_size=world_size), parameters)[0]


def bucket_of(
    table: LayoutTable, parameters: Sequence[torch.Tensor], index: int = 0, *, is_last: bool = True
) -> tuple[Layout, list[torch.Tensor]]:
    """What a table makes of a DDP bucket with these parameters, which stand for their gradients, too."""
    bucket: Any = SimpleNamespace(
        index=lambda: index,
        is_last=lambda: is_last,
        parameters=lambda: parameters,
        gradients=lambda: parameters,
        buffer=lambda: parameters[0],
    )
    if is_last:
        table.count_iteration()
    return table.of(bucket)
