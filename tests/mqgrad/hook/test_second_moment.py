"""Adam's second moment is frozen where gradients have few bits, and refreshed where they have more."""

from typing import Any

import models
import pytest
import torch
from frozen_moments import DUE, new_adam_run, unbiased
from ranks import run_ranks
from scripted import Scripted
from torch import nn

import mqgrad


def test_iterations_that_refresh_grow_rarer() -> None:
    settings = mqgrad.FrozenSecondMoment(every=16, opening=16)
    raised = [i for i in range(400) if settings.in_force(1, i) != 1]
    assert raised == DUE
    later = [i for i in range(1600) if mqgrad.FrozenSecondMoment().in_force(1, i) != 1]
    assert later == [
        *range(64),
        *range(64, 128, 2),
        *range(128, 256, 4),
        *range(256, 512, 8),
        *range(512, 1600, 16),
    ]
    rarest = mqgrad.FrozenSecondMoment(every=6, opening=16)
    assert [i for i in range(64, 80) if rarest.in_force(1, i) == 4] == [66, 72, 78]


def test_they_have_at_least_as_many_bits_as_decided() -> None:
    settings = mqgrad.FrozenSecondMoment(bits=4, opening=16)
    assert [settings.in_force(bits, 0) for bits in (1 / 4, 3, 4, 8, 32)] == [4, 4, 4, 8, 32]
    assert [settings.in_force(bits, 17) for bits in (1 / 4, 3, 4, 8, 32)] == [1 / 4, 3, 4, 8, 32]
    assert settings.in_force((1, 8, 2), 0) == (4, 8, 4)
    assert settings.in_force((1, 8, 2), 17) == (1, 8, 2)
    assert [settings.is_refreshed_at(bits) for bits in (3, 4, 32, (1, 8), (4, 8))] == [
        False,
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(("world_size", "bits"), [(2, 4), (3, 4), (2, 8)])
def test_ranks_send_refreshing_iterations_at_more_bits_and_stay_equal(world_size: int, bits: int) -> None:
    def rank_main(rank: int) -> tuple[list[float], bytes, float]:
        model, optimizer, state = new_adam_run(mqgrad.FixedBits(1), bits=bits)
        sent = []
        for iteration in range(24):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
            sent.append(state.bits)
        mean_bits = state.totals.mean_bits
        state.close()
        return sent, models.parameters_of(model).numpy().tobytes(), mean_bits

    results = run_ranks(rank_main, world_size)
    expected = [bits if i in DUE else 1 for i in range(24)]
    assert [sent for sent, _, _ in results] == [expected] * world_size
    assert len({parameters for _, parameters, _ in results}) == 1
    assert results[0][2] == pytest.approx(sum(expected) / 24)


def test_the_gradients_of_those_iterations_alone_enter_the_second_moment() -> None:
    """Elsewhere it stays, up to the correction of its bias."""

    def rank_main(rank: int) -> list[bool]:
        model, optimizer, state = new_adam_run(mqgrad.FixedBits(1), every=4)
        first = next(model.parameters())
        stays, before = [], torch.zeros(0)
        for iteration in range(24):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
            if iteration > 0:
                stays.append(torch.allclose(unbiased(optimizer, first), before, rtol=1e-4, atol=0))
            before = unbiased(optimizer, first).clone()
        state.close()
        return stays

    due = [*range(16), 16, 18, 20, 22]
    expected = [iteration not in due for iteration in range(1, 24)]
    assert run_ranks(rank_main, 2) == [expected] * 2


def test_one_rank_alone_has_adam_as_it_is() -> None:
    def rank_main(rank: int) -> bool:
        results = []
        for run in (new_adam_run(mqgrad.FixedBits(1)), models.new_run(mqgrad.FixedBits(1))):
            model, _, state = run
            optimizer = run[1] if results == [] else torch.optim.Adam(model.parameters(), lr=0.01)
            models.train(model, optimizer, state, rank, range(20))
            state.close()
            results.append(models.parameters_of(model))
        return torch.equal(*results)

    assert run_ranks(rank_main, 1) == [True]


class Telling(Scripted):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__([1], interval=4)
        self.told: list[tuple[float, float]] = []

    def decide(self, statistics: mqgrad.IntervalStatistics) -> int:
        self.told.append((statistics.mean_bits, statistics.update_exponent))
        return super().decide(statistics)


def test_a_controller_is_told_of_the_width_that_it_has_decided_on() -> None:
    """But where all of an interval was sent at more; and that steps are linear in the gradient."""

    def rank_main(rank: int) -> list[tuple[float, float]]:
        telling = Telling()
        model, optimizer, state = new_adam_run(telling)
        models.train(model, optimizer, state, rank, range(26))
        state.drain()
        state.close()
        return telling.told

    for told in run_ranks(rank_main, 2):
        assert told == [(4, 1.0)] * 4 + [(1, 1.0)] * 2


def test_a_backward_before_a_state_was_loaded_does_not_count() -> None:
    def rank_main(rank: int) -> list[bytes]:
        model, optimizer, state = new_adam_run(mqgrad.FixedBits(1))
        saved = state.state_dict()
        models.backward(model, rank, 0)  # and then the script finds something wrong
        state.load_state_dict(saved)
        gradients = models.train(model, optimizer, state, rank, range(2))
        state.close()
        return gradients

    first, second = run_ranks(rank_main, 2)
    assert first == second


def twice(model: nn.Module, optimizer: torch.optim.Optimizer, state: Any, rank: int) -> None:
    models.backward(model, rank, 0)
    models.backward(model, rank, 1)
    optimizer.step()


def too_late(model: nn.Module, optimizer: torch.optim.Optimizer, state: Any, rank: int) -> None:
    state.step(models.backward(model, rank, 0))
    optimizer.step()


def in_a_closure(model: nn.Module, optimizer: torch.optim.Optimizer, state: Any, rank: int) -> None:
    models.train(model, optimizer, state, rank, range(1))
    optimizer.step(lambda: float(models.backward(model, rank, 1)))


@pytest.mark.parametrize(("mistake", "backwards"), [(twice, 2), (too_late, 0), (in_a_closure, 0)])
def test_a_step_whose_gradients_width_is_not_known_is_refused(mistake: Any, backwards: int) -> None:
    def rank_main(rank: int) -> str:
        model, optimizer, state = new_adam_run(mqgrad.FixedBits(1))
        with pytest.raises(RuntimeError, match=r"no_sync\(\)") as refused:
            mistake(model, optimizer, state, rank)
        state.close()
        return str(refused.value)

    for rank, told in enumerate(run_ranks(rank_main, 2)):
        assert told.startswith(f"rank {rank}: {backwards} backwards between")


def test_what_cannot_be_frozen_is_refused() -> None:
    model = models.small_model()
    adam_, freezing = torch.optim.Adam(model.parameters()), mqgrad.FrozenSecondMoment()
    sgd, largest = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.optim.AdamW(model.parameters(), amsgrad=True),
    )

    def rank_main(rank: int) -> None:
        controller = mqgrad.FixedBits(1)
        for optimizer in (None, sgd):
            with pytest.raises(ValueError, match=r"needs a torch\.optim\.Adam or AdamW as optimizer="):
                mqgrad.CompressionState(controller, optimizer=optimizer, second_moment=freezing)
        with pytest.raises(ValueError, match="amsgrad"):
            mqgrad.CompressionState(controller, optimizer=largest, second_moment=freezing)
        with pytest.raises(ValueError, match="in rounds"):
            mqgrad.CompressionState(controller, optimizer=adam_, second_moment=freezing, period=8)
        with pytest.raises(ValueError, match="no width of 4 bits"):
            mqgrad.CompressionState(None, compressor="onebit", optimizer=adam_, second_moment=freezing)
        first = mqgrad.CompressionState(controller, optimizer=adam_, second_moment=freezing)
        with pytest.raises(
            ValueError, match=r"another CompressionState freezes .*: close\(\) that one first"
        ):
            mqgrad.CompressionState(mqgrad.FixedBits(1), optimizer=adam_, second_moment=freezing)
        first.close()
        mqgrad.CompressionState(mqgrad.FixedBits(1), optimizer=adam_, second_moment=freezing).close()
        with pytest.raises(TypeError, match=r"must be a mqgrad\.FrozenSecondMoment"):
            mqgrad.CompressionState(controller, optimizer=adam_, second_moment=True)  # type: ignore[arg-type]

    run_ranks(rank_main, 1)
    for wrong in ({"bits": 1}, {"bits": 16}, {"every": 0}, {"opening": 0}, {"floor": -1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}|bit width"):
            mqgrad.FrozenSecondMoment(**wrong)
