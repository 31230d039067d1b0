"""A loop that leaves out what the state needs is told so, once."""

import gc
import time
import warnings
import weakref
from typing import Any

import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.hook.forgotten_calls import BACKWARDS, STEPS, UNDECIDED


@pytest.mark.parametrize("period", [1, 4])
def test_a_loop_without_step_is_told_so_once(period: int) -> None:
    def rank_main(rank: int) -> list[str]:
        model, _, state = models.new_run(mqgrad.FixedBits(4), period=period)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for iteration in range(2 * BACKWARDS):
                models.backward(model, rank, iteration)
            state.close()
        return [str(warning.message) for warning in told if warning.category is RuntimeWarning]

    for rank, told in enumerate(run_ranks(rank_main)):
        (message,) = told
        assert message.startswith(f"rank {rank}: {BACKWARDS} backwards since the last step()")


def test_a_loop_without_the_hook_is_told_so_once() -> None:
    def rank_main(rank: int) -> list[str]:
        state = mqgrad.CompressionState(mqgrad.FixedBits(4))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2 * STEPS):
                state.step(1.0)
            state.close()
        return [str(warning.message) for warning in told]

    (told,) = run_ranks(rank_main, world_size=1)
    (message,) = told
    assert message.startswith(
        f"rank 0: {STEPS} steps, and no gradient has come through the hook: call ddp.register"
    )


def test_two_steps_in_an_iteration_are_told_once() -> None:
    """As of a loop with two optimizers."""

    def rank_main(rank: int) -> list[str]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for iteration in range(4):
                models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
                state.step(1.0)
            state.close()
        return [str(warning.message) for warning in told]

    (told,) = run_ranks(rank_main, world_size=1)
    (message,) = told
    assert message.startswith("rank 0: a second step() since the last backward: call it once per iteration")


def test_a_step_before_the_optimizers_is_told_once() -> None:
    """Whether steps grow with gradients would never be known, by which policies expect what noise costs."""

    def rank_main(rank: int) -> list[str]:
        model, optimizer, state = models.new_run(mqgrad.Goodput(interval=2, least_seconds=0.0))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for iteration in range(20):
                optimizer.zero_grad()
                loss = models.backward(model, rank, iteration)
                state.step(loss)
                optimizer.step()
            state.close()
        return [str(warning.message) for warning in told]

    for rank, told in enumerate(run_ranks(rank_main)):
        (message,) = told
        assert message.startswith(
            f"rank {rank}: no parameter has moved between a backward and its state.step(loss)"
        )


def test_a_rate_that_falls_to_0_later_is_told_nothing() -> None:
    def rank_main(rank: int) -> int:
        model, optimizer, state = models.new_run(mqgrad.Goodput(interval=2, least_seconds=0.0))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            models.train(model, optimizer, state, rank, range(6))
            optimizer.param_groups[0]["lr"] = 0.0
            models.train(model, optimizer, state, rank, range(6, 30))
            state.close()
        return len(told)

    assert run_ranks(rank_main) == [0, 0]


def told_of(rank: int, iterations: int, **state_args: Any) -> list[str]:
    model, optimizer, state = models.new_run(None, **state_args)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        models.train(model, optimizer, state, rank, range(iterations))
        state.close()
    return [str(warning.message) for warning in told]


def test_a_run_in_which_nobody_chooses_a_width_is_told_so_once() -> None:
    for told in run_ranks(lambda rank: told_of(rank, 2 * UNDECIDED)):
        (message,) = told
        assert f"{UNDECIDED} iterations at 32 bits, which compress nothing" in message


@pytest.mark.parametrize("state_args", [{"compressor": "terngrad"}, {"period": 2}])
def test_where_32_bits_are_no_oversight_nothing_is_told(state_args: dict[str, Any]) -> None:
    """Of a compressor without a choice of widths, and of local SGD in fp32."""
    assert run_ranks(lambda rank: told_of(rank, 2 * UNDECIDED, **state_args)) == [[], []]


def test_32_bits_that_were_chosen_before_a_checkpoint_are_no_oversight() -> None:
    def rank_main(rank: int) -> list[str]:
        model, optimizer, state = models.new_run(None)
        state.set_width(32)
        models.train(model, optimizer, state, rank, range(2))
        saved = state.state_dict()
        state.close()
        model, optimizer, state = models.new_run(None)
        state.load_state_dict(saved)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            models.train(model, optimizer, state, rank, range(2, 2 * UNDECIDED))
            state.close()
        return [str(warning.message) for warning in told]

    assert run_ranks(rank_main) == [[], []]


@pytest.mark.parametrize("compressor", ["onebit-adam", "dgc:0.05", "sketched-sgd:0.02", "gravac:base=dgc"])
def test_a_momentum_of_the_optimizer_beside_one_of_the_compressor_is_told(compressor: str) -> None:
    model = models.small_model()

    def rank_main(rank: int) -> list[str]:
        told = []
        for optimizer in (
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(model.parameters()),
            torch.optim.SGD(model.parameters(), lr=0.1),
        ):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                mqgrad.CompressionState(compressor=compressor, optimizer=optimizer).close()
            told.append([str(warning.message) for warning in warned])
        return told

    for told in run_ranks(rank_main):
        assert [len(each) for each in told] == [1, 1, 0]
        assert (
            "takes a momentum of the gradients by itself, and the optimizer, Adam, takes another"
            in told[1][0]
        )
    assert run_ranks(rank_main, world_size=1) == [[[], [], []]]  # nothing is sent


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_ranks_agree_however_far_apart_they_call_step_for_the_second_time(interval: int) -> None:
    """The communication thread decides meanwhile: on one rank before the second call, on the other after it."""

    def rank_main(rank: int) -> list[torch.Tensor]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=interval), timeout_seconds=20.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for iteration in range(10):
                models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
                time.sleep(0.03 * ((rank + iteration // 2) % 2))
                state.step(1.0)
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
        state.close()
        return parameters

    first, second = run_ranks(rank_main)
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("period", [1, 2])
def test_a_usual_loop_is_told_nothing_and_leaves_nothing(period: int) -> None:
    """Nor is a closed state kept by itself, with model and residuals, until Python looks for cycles."""

    def rank_main(rank: int) -> tuple[int, bool]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=2), period=period)
        gc.collect()
        gc.disable()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            models.train(model, optimizer, state, rank, range(2 * BACKWARDS))
            state.close()
        kept = weakref.ref(state)
        del model, optimizer, state
        return len(told), kept() is None

    assert run_ranks(rank_main) == [(0, True)] * 2
