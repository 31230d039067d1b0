"""What remembers a run is one state's alone; and what a state refuses to be used for."""

import copy
from collections.abc import Callable
from typing import Any

import models
import pytest
import torch.distributed
import torch.distributed.distributed_c10d as c10d
from ranks import run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.compressors import make_compressor

SHARED: dict[str, Callable[[], dict[str, Any]]] = {
    "compressor": lambda: {"compressor": make_compressor("quantized")},
    "controller": lambda: {"controller": mqgrad.Goodput()},
}


@pytest.mark.parametrize("what", SHARED)
def test_two_states_cannot_have_the_same_object(what: str) -> None:
    """At 1 bit the residuals of one model moved the other, whose gradient was zero, by a norm of 87; and a second run
    began with the drops in loss of the first."""

    def rank_main(rank: int) -> None:
        shared = SHARED[what]()
        first = mqgrad.CompressionState(**shared)
        with pytest.raises(ValueError, match=f"{what}: this .* belongs to another CompressionState"):
            mqgrad.CompressionState(**shared)
        first.close()
        with pytest.raises(ValueError, match="another CompressionState, open or closed"):
            mqgrad.CompressionState(**shared)

    run_ranks(rank_main)


@pytest.mark.parametrize("what", SHARED)
def test_a_state_that_never_came_about_claims_nothing(what: str) -> None:
    def rank_main(rank: int) -> None:
        shared = SHARED[what]()
        with pytest.raises(ValueError, match="timeout_seconds"):
            mqgrad.CompressionState(**shared, timeout_seconds=-1.0)
        mqgrad.CompressionState(**shared).close()

    run_ranks(rank_main)


def test_a_compressor_that_still_owes_something_is_not_taken() -> None:
    """Its residuals would be taken for those of parameters of the model."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4))
        models.train(model, optimizer, state, rank, range(2))
        compressor = make_compressor("quantized")
        compressor.load_state_dict(state.compressor.state_dict())
        state.close()
        with pytest.raises(
            ValueError, match="compressor: this Quantized still holds what error feedback owes"
        ):
            mqgrad.CompressionState(mqgrad.FixedBits(4), compressor=compressor)

    run_ranks(rank_main)


def test_what_remembers_nothing_may_be_shared() -> None:
    def rank_main(rank: int) -> None:
        policy = mqgrad.FixedBits(1)
        states = [mqgrad.CompressionState(policy) for _ in range(2)]
        for state in states:
            state.close()

    run_ranks(rank_main)


def test_a_wrapped_model_is_not_copied_as_a_whole() -> None:
    def rank_main(rank: int) -> None:
        ddp, _, state = models.new_run(mqgrad.FixedBits(4))
        with pytest.raises(TypeError, match=r"copy or save ddp\.module in place"):
            copy.deepcopy(ddp)
        copy.deepcopy(ddp.module)
        state.close()

    run_ranks(rank_main)


def test_a_compressor_that_averages_nothing_says_so() -> None:
    """A script that gives it may mean that gradients are to travel as they are."""

    def rank_main(rank: int) -> None:
        with pytest.warns(RuntimeWarning, match="compressor 'none' sends nothing"):
            state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor="none")
        state.close()

    run_ranks(rank_main)


class Link:
    def seconds(self, wire_bytes: int) -> float:
        return 0.0


class Untold(mqgrad.FixedBits):
    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("its state is not told")


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "controller": (
        {"controller": 4},
        TypeError,
        "controller 4 lacks initial_bits, interval, decide, .*FixedBits",
    ),
    "half a controller": ({"controller": Link()}, TypeError, "controller .*Link object.* lacks initial_bits"),
    "a controller without a state": ({"controller": Untold(4)}, NotImplementedError, "its state is not told"),
    "period_rule": ({"period_rule": 8}, TypeError, "period_rule 8 lacks decide, state_dict, load_state_dict"),
    "link": ({"link": 5}, TypeError, "link 5 cannot pace"),
    "width": (
        {"controller": mqgrad.FixedBits(3), "compressor": "powersgd"},
        ValueError,
        "FixedBits chooses among 3 bits, and PowerSGD has 32; compressors that have these widths: .*quantized",
    ),
    "process_group": ({"process_group": 3}, TypeError, r"process_group 3 is of type int: .*mesh\.get_group"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_refused_leaves_no_group_behind(what: str) -> None:
    arguments, kind, message = WRONG[what]

    def rank_main(rank: int) -> None:
        before = len(c10d._world.pg_map)
        with pytest.raises(kind, match=message):
            mqgrad.CompressionState(**{"controller": mqgrad.FixedBits(4), **arguments})
        assert len(c10d._world.pg_map) == before

    run_ranks(rank_main, 1)


def test_a_group_without_this_rank_is_named() -> None:
    def rank_main(rank: int) -> None:
        group = torch.distributed.new_group([0])
        if rank == 1:
            with pytest.raises(
                ValueError, match="is a group without rank 1: construct a CompressionState on the"
            ):
                mqgrad.CompressionState(mqgrad.FixedBits(4), process_group=group)
        else:
            mqgrad.CompressionState(mqgrad.FixedBits(4), process_group=group).close()

    run_ranks(rank_main)


def test_a_controller_may_have_its_methods_from_anywhere() -> None:
    """As one that passes on what another has: protocols looked at statically would not see it."""

    class Passing:
        def __init__(self) -> None:
            self._inner = Scripted([4])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    def rank_main(rank: int) -> int:
        model, optimizer, state = models.new_run(Passing())
        models.train(model, optimizer, state, rank, range(3))
        state.close()
        return state.controller.made

    assert run_ranks(rank_main, 1) == [1]


def test_wrong_arguments_and_calls_are_named() -> None:
    def rank_main(rank: int) -> None:
        with pytest.raises(TypeError, match=r"'default' is a name: .*load_policy\('default'"):
            mqgrad.CompressionState("default")  # type: ignore[arg-type]
        for seconds in (float("inf"), float("nan"), 0.0, "60"):
            with pytest.raises(ValueError, match="timeout_seconds must be a finite number above 0"):
                mqgrad.CompressionState(mqgrad.FixedBits(4), timeout_seconds=seconds)  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match=r"timeout_seconds must be at most 1e\+08, not 1000000000000000.0"
        ):
            mqgrad.CompressionState(mqgrad.FixedBits(4), timeout_seconds=1e15)
        with pytest.raises(TypeError, match=r"controller is the class Goodput: give an object of it"):
            mqgrad.CompressionState(mqgrad.Goodput)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"compressor is the class Quantized"):
            mqgrad.CompressionState(mqgrad.FixedBits(4), compressor=mqgrad.Quantized)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"period_rule is the class DelayRatio"):
            mqgrad.CompressionState(mqgrad.FixedBits(4), period_rule=mqgrad.DelayRatio)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"period_rule 'adacomm' is a name"):
            mqgrad.CompressionState(mqgrad.FixedBits(4), period_rule="adacomm")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="link 5 cannot pace"):
            mqgrad.CompressionState(mqgrad.FixedBits(4), link=5)  # type: ignore[arg-type]
        state = mqgrad.CompressionState(mqgrad.load_policy("default", budget_seconds=60))
        with pytest.raises(RuntimeError, match="FrozenPolicy, decides; to choose widths") as refused:
            state.set_width(4)
        assert len(str(refused.value)) < 200
        with pytest.raises(TypeError, match="python_reducer"):
            mqgrad.compression_hook(state, ())  # type: ignore[arg-type]
        state.close()

    run_ranks(rank_main)
