"""Where gradients lie in the vector that is coded."""

import torch
from layouts import bucket_of

from mqgrad.layout import LayoutTable


def test_a_model_that_has_moved_to_another_device_has_another_layout() -> None:
    """Its parameters stay the same objects."""
    parameter, table = torch.zeros(700), LayoutTable(bucket_size=512, world_size=2)
    before = bucket_of(table, [parameter])[0]
    assert bucket_of(table, [parameter])[0] is before
    torch.utils.swap_tensors(parameter, torch.zeros(700, device="meta"))
    after = bucket_of(table, [parameter])[0]
    assert after is not before
    assert {after.bucket_ids.device.type, after.padding.device.type} == {"meta"}
    assert after.keys == before.keys
