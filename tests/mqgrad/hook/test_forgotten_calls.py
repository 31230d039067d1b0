"""A loop that leaves out what the state needs is told so, once."""

import gc
import warnings
import weakref

import models
import pytest
from ranks import run_ranks

import mqgrad
from mqgrad.hook.forgotten_calls import BACKWARDS, STEPS


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
