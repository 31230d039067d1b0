"""Checkpoints of CompressionState: what they hold, and what is refused."""

import copy
import io
from collections.abc import Callable
from typing import Any

import models
import numpy as np
import pytest
import torch
from layouts import bucket_of
from ranks import run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.hook.checkpoint import FORMAT_VERSION
from mqgrad.hook.layout_table import LayoutTable


def test_a_resumed_run_counts_what_a_decision_has_cost_before_it_was_saved() -> None:
    """Sent besides: checks of agreement in the first iterations after loading, 64 bytes to one other rank."""

    def rank_main(rank: int) -> tuple[float, float]:
        model, optimizer, state = models.new_run(Scripted([32]))
        state.mark()
        models.train(model, optimizer, state, rank, range(4))  # the second decision has just been made
        saved, other = state.state_dict(), models.new_run(Scripted([32]))
        models.train(model, optimizer, state, rank, range(4, 9))
        state.close()
        other[2].load_state_dict(saved)
        models.train(*other, rank, range(4, 9))
        other[2].close()
        return state.totals.wire_bytes, other[2].totals.wire_bytes

    for straight, resumed in run_ranks(rank_main, 2):
        assert (
            resumed == straight + 2 * 64
        )  # before the fifth iteration, which has been compared, and the sixth


def test_a_state_of_another_format_is_refused_and_what_differs_is_named() -> None:
    def rank_main(rank: int) -> list[str]:
        model, optimizer, state = models.new_run(Scripted([4, 8]))
        models.train(model, optimizer, state, rank, range(3))
        saved = state.state_dict()
        gain = {name: value for name, value in saved["compressor"]["push_gain"].items() if name != "pending"}
        others = [
            {name: value for name, value in saved.items() if name != "format_version"},
            saved | {"format_version": 99},
            {name: value for name, value in saved.items() if name != "open_costs"},
            saved | {"colour": "red"},
            saved | {"totals": {"iterations": 3}},
            saved | {"statistics": saved["statistics"] | {"joules": 1.0}},
            saved | {"compressor": saved["compressor"] | {"push_gain": gain}},
        ]
        told = []
        for other in others:
            with pytest.raises(ValueError, match="start anew") as refused:
                state.load_state_dict(other)
            told.append(str(refused.value))
        state.load_state_dict(saved)
        state.close()
        return told

    expected = [
        f"rank 0 has no format version, and format version {FORMAT_VERSION} is expected",
        "rank 0 has format version 99",
        "rank 0 lacks open_costs",
        "rank 0 also has colour",
        "Totals lacks bit_iterations, ",
        "RankStatistics also has joules",
        "gain of feedback lacks pending",
    ]
    (told,) = run_ranks(rank_main, 1)
    for message, part in zip(told, expected, strict=True):
        assert part in message


def test_numbers_of_numpys_are_saved_as_what_torch_load_takes() -> None:
    """An argument such as ``np.ceil(iterations / 10).astype(int)`` made checkpoints that it refused."""
    controllers: list[Callable[[], Any]] = [
        lambda: mqgrad.controllers.LinearRamp(decisions=np.int64(2), interval=1),
        lambda: mqgrad.Goodput(keep=np.float64(0.9), interval=2),
    ]

    def rank_main(rank: int) -> None:
        for make_controller in controllers:
            model, optimizer, state = models.new_run(make_controller())
            models.train(model, optimizer, state, rank, range(6))
            torch.save(state.state_dict(), file := io.BytesIO())
            state.close()
            file.seek(0)
            *run, other = models.new_run(make_controller())
            other.load_state_dict(torch.load(file))
            models.train(*run, other, rank, range(6, 8))
            other.close()

    run_ranks(rank_main)


def test_another_fixed_width_begins_at_once() -> None:
    """Not where the interval of up to a hundred iterations ends."""

    def rank_main(rank: int) -> list[float]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4))
        models.train(model, optimizer, state, rank, range(12))
        saved = state.state_dict()
        state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(8))
        state.load_state_dict(saved)
        widths = []
        for iteration in range(12, 15):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
            state.drain()
            widths.append(state.bits)
        state.close()
        return widths

    assert run_ranks(rank_main) == [[8, 8, 8]] * 2


def test_a_state_is_not_saved_between_a_backward_and_its_step() -> None:
    """As by a script that saves when it is interrupted: what was averaged would be missing."""

    class Interrupted(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise KeyError("between two buckets")

    def rank_main(rank: int) -> bool:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4))
        models.train(model, optimizer, state, rank, range(3))
        saved = state.state_dict()
        refused = rf"rank {rank}: state_dict\(\) between a backward, .* and its step\(\)"
        models.backward(model, rank, 3)  # a whole one
        with pytest.raises(RuntimeError, match=refused):
            state.state_dict()
        state.load_state_dict(saved)
        interrupt = model.module[0].register_forward_hook(lambda *args: Interrupted.apply(args[-1]))
        with pytest.raises(KeyError):
            models.backward(model, rank, 3)
        interrupt.remove()
        with pytest.raises(RuntimeError, match=refused):
            state.state_dict()
        state.load_state_dict(saved)
        same = state.state_dict()["compressor"]["push_feedback"][0].equal(
            saved["compressor"]["push_feedback"][0]
        )
        state.close()
        return same

    assert run_ranks(rank_main) == [True] * 2


def test_the_state_of_another_rank_is_refused() -> None:
    """As where rank 0 alone saves, and all load: each residual would count as often as there are ranks."""

    def rank_main(rank: int) -> str:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4))
        models.train(model, optimizer, state, rank, range(3))
        saved = [state.state_dict()]
        torch.distributed.broadcast_object_list(saved)
        told = ""
        try:
            state.load_state_dict(saved[0])
        except ValueError as refused:
            told = str(refused)
        state.close()
        return told

    first, second = run_ranks(rank_main)
    assert first == ""
    assert second.startswith("rank 1: the state is rank 0's, ")


def test_statistics_of_another_run_are_not_this_ones() -> None:
    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(Scripted([4, 8]))
        models.train(model, optimizer, state, rank, range(8))
        state.drain()
        assert state.last_statistics is not None
        state.load_state_dict(state.state_dict())
        assert state.last_statistics is None
        state.close()

    run_ranks(rank_main, 1)


def test_another_controllers_state_is_refused_by_name() -> None:
    def rank_main(rank: int) -> list[str]:
        makes = [lambda: mqgrad.Goodput(), lambda: mqgrad.FixedBits(4), lambda: None]
        states = [mqgrad.CompressionState(make()) for make in makes]
        told = []
        for state, other in zip(states, states[1:] + states[:1], strict=True):
            with pytest.raises(
                ValueError, match=f"^rank {rank}: .* construct CompressionState with "
            ) as refused:
                other.load_state_dict(state.state_dict())
            told.append(str(refused.value))
        for state in states:
            state.close()
        return told

    for told in run_ranks(rank_main, 2):
        assert "saved with a controller Goodput and cannot be loaded with a controller FixedBits" in told[0]
        assert "saved with a controller FixedBits and cannot be loaded with no controller" in told[1]
        assert "saved with no controller and cannot be loaded with a controller Goodput" in told[2]


@pytest.mark.parametrize("is_controlled", [True, False])
def test_a_refused_state_leaves_the_run_as_it_was(is_controlled: bool) -> None:
    """Whatever of it has been loaded by then: the controller comes last."""

    def rank_main(rank: int) -> list[bool]:
        model, optimizer, state = models.new_run(Scripted([4, 8]) if is_controlled else None)
        models.train(model, optimizer, state, rank, range(3))
        other = state.state_dict()
        models.train(model, optimizer, state, rank, range(3, 6))
        if not is_controlled:
            state.set_width([4, 8] * 4)  # from the next iteration on
        own, widths, seen = state.state_dict(), state.parameter_bits, state.last_statistics
        controller = {"controller": {}} if is_controlled else {"controller_class": "Scripted"}
        parts = [{"statistics": {}}, {"requested_bits": 7.5}, {"compressor": {}}, controller]
        same = []
        for part in parts:
            with pytest.raises((ValueError, KeyError)):
                state.load_state_dict(other | part)
            same.append(same_state(state.state_dict(), own) and state.parameter_bits == widths)
            same.append(state.last_statistics is seen)
        models.train(model, optimizer, state, rank, range(6, 8))
        state.close()
        return same

    assert all(all(same) for same in run_ranks(rank_main, 2))


def linears(state: mqgrad.CompressionState, **ddp: object) -> models.Run:
    """All of its parameters have one shape, so that only DDP's buckets tell them apart."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(6)])
    wrapped = models.compressed_ddp(model, state, **ddp)
    return wrapped, torch.optim.SGD(model.parameters(), lr=0.1), state


@pytest.mark.parametrize("period", [1, 2])
def test_a_state_whose_parameters_came_in_another_order_is_refused_on_every_rank(period: int) -> None:
    """DDP's first buckets tell the order: else residuals and anchors would go to the wrong parameters."""

    def rank_main(rank: int) -> list[str]:
        run = linears(mqgrad.CompressionState(mqgrad.FixedBits(2), period=period), bucket_cap_mb=0.02)
        models.train(*run, rank, range(5))
        saved = run[2].state_dict()
        run[2].close()
        state = mqgrad.CompressionState(mqgrad.FixedBits(2), period=period)
        other = linears(state, bucket_cap_mb=0.02, find_unused_parameters=True)
        state.load_state_dict(saved)
        assert state.state_dict()["parameter_order"] == saved["parameter_order"]
        with pytest.raises(ValueError, match="another order") as fresh:
            models.train(*other, rank, range(5, 6))
        state.close()
        state = mqgrad.CompressionState(mqgrad.FixedBits(2), period=period)
        other = linears(state, bucket_cap_mb=0.02, find_unused_parameters=True)
        models.train(*other, rank, range(2))
        with pytest.raises(ValueError, match="another order") as begun:
            state.load_state_dict(saved)
        models.train(*other, rank, range(2, 4))
        state.close()
        return [str(fresh.value), str(begun.value)]

    for rank, refusals in enumerate(run_ranks(rank_main, 2)):
        for told in refusals:
            assert f"rank {rank}: the saved state" in told
            assert "find_unused_parameters and bucket_cap_mb" in told
            assert "bucket 0 had 6 parameters of shapes (64, 64), (64, 64), (64, 64), …, and here" in told


def test_parameters_may_be_added_after_a_state_was_saved_or_loaded() -> None:
    """As by a script that trains more of its model later: what was known keeps its place."""
    shapes = [(4, 2), (4,), (3, 4)]
    first, second, third = (torch.zeros(shape) for shape in shapes)
    saved, table = LayoutTable(bucket_size=2, world_size=2), LayoutTable(bucket_size=2, world_size=2)
    bucket_of(saved, [first, second])
    table.load_state_dict(saved.state_dict())
    bucket_of(table, [first, second])
    bucket_of(table, [third])
    assert table.state_dict() == [shapes[:2], shapes[2:]]
    partial = LayoutTable(bucket_size=2, world_size=2)
    partial.load_state_dict(table.state_dict())
    bucket_of(partial, [first, second])
    assert partial.state_dict() == table.state_dict()  # what is still to come is not forgotten
    table.load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match=r"bucket 0 had 1 parameters of shapes \(3, 4\), and here has 2 "):
        table.load_state_dict([[(3, 4)]])


def test_a_state_is_loaded_where_parameters_come_in_the_same_order() -> None:
    """Several buckets bring them, which DDP has regrouped by the time when the state is saved."""

    def rank_main(rank: int) -> bool:
        ddp = {"bucket_cap_mb": 0.04, "find_unused_parameters": True}
        run = linears(mqgrad.CompressionState(mqgrad.FixedBits(2)), **ddp)
        models.train(*run, rank, range(3))
        saved = run[2].state_dict()
        weights = copy.deepcopy(run[0].state_dict())
        straight = models.train(*run, rank, range(3, 5))
        run[2].close()
        again = linears(mqgrad.CompressionState(mqgrad.FixedBits(2)), **ddp)
        again[0].load_state_dict(weights)
        again[2].load_state_dict(saved)
        resumed = models.train(*again, rank, range(3, 5))
        order = again[2].state_dict()["parameter_order"]
        again[2].close()
        return straight == resumed and order == saved["parameter_order"] and len(order) > 1

    assert all(run_ranks(rank_main, 2))


def same_state(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_state, one, other))
    return one == other


def test_a_state_is_told_by_all_that_ranks_must_have_alike() -> None:
    """In the words of states that have been saved."""

    def rank_main(rank: int) -> str:
        rounds = {
            "period": 3,
            "slow_momentum": 0.5,
            "variance_reduced": True,
            "period_rule": mqgrad.DelayRatio(),
        }
        state = mqgrad.CompressionState(mqgrad.FixedBits(16), seed=7, compressor="fp16", **rounds)
        config = state.state_dict()["config"]
        state.close()
        return config

    assert (
        run_ranks(rank_main)
        == [
            "FP16(), seed=7, world_size=2, period=3, slow_momentum=0.5, variance_reduced=True, period_rule=DelayRatio"
        ]
        * 2
    )
