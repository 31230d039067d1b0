"""Parameters that something else moves between two rounds, by which replicas part: that is told, once."""

import warnings
from collections.abc import Callable
from typing import Any

import models
import pytest
import torch
from ranks import run_ranks
from torch import nn

import mqgrad

PERIOD, ITERATIONS = 3, 12
ALL_OF_IT: dict[str, Any] = {"slow_momentum": 0.5, "variance_reduced": True}


def told(
    after_backward: Callable[..., None], dtype: torch.dtype = torch.float32, **settings: Any
) -> list[list[str]]:
    """What each rank is warned of, where this follows each backward."""

    def rank_main(rank: int) -> list[str]:
        model = models.small_model().append(nn.BatchNorm1d(4)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        state = mqgrad.CompressionState(mqgrad.FixedBits(1), period=PERIOD, **settings)
        ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for iteration in range(ITERATIONS):
                optimizer.zero_grad()
                x, y = models.batch(rank, iteration)
                loss = nn.functional.cross_entropy(ddp(x.to(dtype)), y)
                loss.backward()
                after_backward(optimizer, state, loss, iteration)
            state.finish_round()
            state.close()
        return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]

    return run_ranks(rank_main)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [{}, ALL_OF_IT])
def test_nothing_is_told_where_step_comes_last(dtype: torch.dtype, settings: dict[str, Any]) -> None:
    def after_backward(optimizer: Any, state: Any, loss: torch.Tensor, iteration: int) -> None:
        optimizer.step()
        state.step(loss)
        if iteration == 6:
            state.finish_round()

    assert told(after_backward, dtype, **settings) == [[], []]


def test_nothing_is_told_where_an_iteration_has_two_backwards_with_a_step_each() -> None:
    """As of a discriminator and a generator."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(1), period=PERIOD)
        for iteration in range(ITERATIONS):
            for part in range(2):
                optimizer.zero_grad()
                loss = models.backward(model, rank, 2 * iteration + part)
                optimizer.step()
            state.step(loss)
        state.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        run_ranks(rank_main)


def test_steps_that_are_reported_before_they_are_made_are_told_once() -> None:
    def after_backward(optimizer: Any, state: Any, loss: torch.Tensor, iteration: int) -> None:
        state.step(loss)
        optimizer.step()

    for rank, messages in enumerate(told(after_backward)):
        (message,) = messages
        assert message.startswith(f"rank {rank}: a parameter of shape (")
        assert "call state.step() after optimizer.step()" in message


def test_parameters_that_are_changed_by_hand_are_told_once() -> None:
    def after_backward(optimizer: Any, state: Any, loss: torch.Tensor, iteration: int) -> None:
        optimizer.step()
        state.step(loss)
        if state.replicas_are_equal:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0].add_(1.0)

    for messages in told(after_backward):
        (message,) = messages
        assert (
            "a parameter of shape (64, 64) changed between the end of a round and the next backward"
            in message
        )
