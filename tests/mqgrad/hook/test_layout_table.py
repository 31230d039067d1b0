"""Where gradients lie in the vector that is coded."""

import warnings

import pytest
import torch
from layouts import bucket_of

from mqgrad.hook.layout_table import LayoutTable


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


def test_what_ddp_brings_no_more_is_told_once_its_buckets_have_all_come() -> None:
    """Not before: buckets that nobody has used may stay away, the last one included."""
    a, b, c = parameters = torch.zeros(3, 8).unbind()
    table = LayoutTable(bucket_size=8, world_size=2)
    for index in range(3):
        bucket_of(table, [parameters[index]], index, is_last=index == 2)
    assert table.take_gone() == set()
    bucket_of(table, [a], 0, is_last=False)
    bucket_of(table, [b], 1, is_last=False)  # and no last one
    for index, parameter in ((0, b), (2, c)):  # wrapped anew, with `a` in the bucket that stays away
        bucket_of(table, [parameter], index, is_last=index == 2)
    assert table.take_gone() == set()
    for index, parameter in ((0, b), (1, c)):  # and without it
        bucket_of(table, [parameter], index, is_last=index == 1)
    assert (table.take_gone(), table.take_gone()) == ({0}, set())


def test_a_state_that_is_loaded_may_owe_for_what_ddp_brings_no_more() -> None:
    a, b = torch.zeros(2, 8).unbind()
    table = LayoutTable(bucket_size=8, world_size=2)
    bucket_of(table, [a, b])
    saved = table.state_dict()
    bucket_of(table, [b])
    assert table.take_gone() == {0}
    bucket_of(table, [b])
    assert table.take_gone() == set()
    table.load_state_dict(saved)
    bucket_of(table, [b])
    assert table.take_gone() == {0}


def test_what_ddp_brings_no_more_has_no_elements() -> None:
    """A controller shared a budget of bits with layers that were frozen, and the mean width counted them."""
    a, b = torch.zeros(8), torch.zeros(24)
    table = LayoutTable(bucket_size=8, world_size=2)
    bucket_of(table, [a, b])
    assert table.numels == [8, 24]
    assert table.mean_over_elements([1, 5]) == 4
    bucket_of(table, [a])
    assert table.numels == [8, 0]
    assert table.mean_over_elements([1, 5]) == 1


@pytest.mark.parametrize("iterations", [1, 20])
def test_parameters_of_two_models_in_turn_are_refused(iterations: int) -> None:
    a, b = torch.zeros(8), torch.zeros(16)
    table = LayoutTable(bucket_size=8, world_size=2, rank=3)
    for _ in range(iterations):
        bucket_of(table, [a])
    for _ in range(iterations):
        bucket_of(table, [b])
    with pytest.raises(
        RuntimeError, match=r"rank 3: parameters of two models come in turn, 1 .*\(8,\), .*\(16,\)"
    ):
        bucket_of(table, [a])


def test_layers_of_one_model_may_be_trained_by_turns() -> None:
    """By freezing the others, and wrapping the model anew."""
    a, b, c = torch.zeros(3, 8).unbind()
    table = LayoutTable(bucket_size=8, world_size=2)
    for trained in ([a, b], [b, c], [a, b], [a, b, c], [c]):
        bucket_of(table, trained)
    for trained in ([a], [c]):
        for _ in range(200):
            bucket_of(table, trained)


def test_the_last_buckets_may_be_those_that_come_no_more() -> None:
    """No bucket has other parameters then. What error feedback owed them was kept, and paid once they came again."""
    parameters = torch.zeros(3, 8).unbind()
    table = LayoutTable(bucket_size=8, world_size=2)
    for last in (2, 1):
        for index in range(last + 1):
            bucket_of(table, [parameters[index]], index, is_last=index == last)
    assert (table.take_gone(), table.numels) == ({2}, [8, 8, 0])
    assert table.is_active([0, 1])
    assert not table.is_active([2])


def test_two_models_with_layers_in_common_are_told_of() -> None:
    trunk, one, other = torch.zeros(3, 8).unbind()
    table = LayoutTable(bucket_size=8, world_size=2)
    with warnings.catch_warnings(record=True) as told:
        for number in range(10):
            bucket_of(table, [trunk, (one, other)[number % 2]])
    (warning,) = told
    assert "parameters come in turn" in str(warning.message)
