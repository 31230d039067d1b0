"""Adam's second moment is frozen where gradients have few bits, and refreshed where they have more."""

import math
from collections.abc import Sequence
from typing import Any

import averages
import models
import pytest
import torch
from ranks import run_ranks
from scripted import Scripted
from torch import nn

import mqgrad
from mqgrad.hook.second_moment import SecondMoments

DUE = [*range(16), *range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8), *range(128, 400, 16)]
STEPS = 40


def test_iterations_that_refresh_grow_rarer() -> None:
    settings = mqgrad.FrozenSecondMoment(every=16)
    raised = [i for i in range(400) if settings.in_force(1, i) != 1]
    assert raised == DUE
    rarest = mqgrad.FrozenSecondMoment(every=6)
    assert [i for i in range(64, 80) if rarest.in_force(1, i) == 4] == [66, 72, 78]


def test_they_have_at_least_as_many_bits_as_decided() -> None:
    settings = mqgrad.FrozenSecondMoment(bits=4)
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


def gradients(steps: int = STEPS) -> list[list[torch.Tensor]]:
    """Of two parameters, step by step; some elements are much smaller than others."""
    generator = torch.Generator().manual_seed(3)
    scales = [torch.logspace(-6, 0, 7), torch.ones(2, 3)]
    return [[scale * torch.randn(scale.shape, generator=generator) for scale in scales] for _ in range(steps)]


def stepped(
    kind: type[torch.optim.Optimizer], refreshed: Sequence[bool] | None, **arguments: Any
) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Parameters after a step for each gradient; None: as PyTorch has it."""
    parameters = [nn.Parameter(torch.ones(7)), nn.Parameter(torch.ones(2, 3))]
    optimizer = kind(parameters, lr=0.01, **arguments)
    at = iter(refreshed or ())
    if refreshed is not None:
        SecondMoments(mqgrad.FrozenSecondMoment(floor=0.01), optimizer, lambda: next(at))
    for own in gradients():
        for parameter, gradient in zip(parameters, own, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return [parameter.detach() for parameter in parameters], optimizer


KINDS = [torch.optim.Adam, torch.optim.AdamW]
WAYS: list[dict[str, Any]] = [{"foreach": True}, {"foreach": False}, {"fused": True}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_it_is_adam_where_all_gradients_refresh(
    kind: type[torch.optim.Optimizer], way: dict[str, Any]
) -> None:
    plain, _ = stepped(kind, None, **way)
    refreshed, _ = stepped(kind, [True] * STEPS, **way)
    assert all(map(torch.equal, plain, refreshed))


def by_the_formulas(
    refreshed: Sequence[bool], betas: tuple[float, float], decay: float
) -> list[torch.Tensor]:
    """AdamW in double precision whose second moment is frozen now and then, the average of squares written out."""
    results = []
    for k, first in enumerate(gradients()[0]):
        x, m, v = (torch.full(first.shape, value, dtype=torch.float64) for value in (1, 0, 0))
        m_weight = v_weight = 0.0  # sums of the weights in m and v
        since = 0
        for own, refreshes in zip(gradients(), refreshed, strict=True):
            g = own[k].double()
            since += 1
            if not refreshes and since == 1:
                m, m_weight = m / m_weight, 1.0
                v = v.clamp(min=0.01 * v.mean())
            m, m_weight = betas[0] * m + (1 - betas[0]) * g, betas[0] * m_weight + 1 - betas[0]
            if refreshes:
                kept = betas[1] ** since
                v, v_weight = kept * v + (1 - kept) * g**2, kept * v_weight + 1 - kept
                since = 0
            x = x * (1 - 0.01 * decay)
            x -= 0.01 * (m / m_weight) / ((v / v_weight).sqrt() + 1e-8)
        results.append(x)
    return results


@pytest.mark.parametrize("way", WAYS)
def test_it_is_adam_with_a_second_moment_of_refreshing_gradients_alone(way: dict[str, Any]) -> None:
    refreshed = [i in DUE for i in range(STEPS)]
    expected = by_the_formulas(refreshed, (0.8, 0.95), decay=0.1)
    found, _ = stepped(torch.optim.AdamW, refreshed, betas=(0.8, 0.95), weight_decay=0.1, **way)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.double(), other, rtol=2e-5, atol=2e-5)
    plain, _ = stepped(torch.optim.AdamW, None, betas=(0.8, 0.95), weight_decay=0.1, **way)
    assert max(float((own - other).abs().max()) for own, other in zip(found, plain, strict=True)) > 0.01


def adam(*shapes: int) -> tuple[list[nn.Parameter], torch.optim.Adam]:
    parameters = [nn.Parameter(torch.ones(shape)) for shape in shapes]
    return parameters, torch.optim.Adam(parameters, lr=0.01)


def test_a_parameter_may_take_its_first_steps_while_frozen() -> None:
    """Its second moment is the mean of its squared gradients so far, until one refreshes it."""
    (early, late), optimizer = adam(3, 3)
    refreshes = True
    SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: refreshes)
    for i in range(8):
        refreshes = i in (0, 7)
        early.grad = torch.full((3,), 2.0)
        late.grad = None if i < 4 else torch.full((3,), 0.5)
        optimizer.step()
    assert math.isinf(optimizer.state[late]["step"])
    torch.testing.assert_close(optimizer.state[late]["exp_avg_sq"], torch.full((3,), 0.25), rtol=1e-3, atol=0)
    torch.testing.assert_close(late.detach(), torch.full((3,), 1 - 4 * 0.01), rtol=1e-4, atol=0)


def test_the_script_sees_its_own_beta2_even_after_a_step_that_failed() -> None:
    (parameter,), optimizer = adam(3)
    moments = SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: False)
    parameter.grad = torch.ones(3)

    def interrupted() -> float:
        raise KeyboardInterrupt

    for _ in range(2):
        optimizer.step()
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(interrupted)
    moments.close()
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    before = optimizer.state[parameter]["exp_avg_sq"].clone()
    parameter.grad = torch.full((3,), 10.0)
    optimizer.step()
    torch.testing.assert_close(
        optimizer.state[parameter]["exp_avg_sq"], 0.999 * before + 0.1, rtol=1e-4, atol=0
    )


def new_run(controller: mqgrad.Controller, **settings: Any) -> models.Run:
    model = models.small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = mqgrad.CompressionState(
        controller, optimizer=optimizer, second_moment=mqgrad.FrozenSecondMoment(**settings)
    )
    return models.compressed_ddp(model, state, bucket_cap_mb=0.02), optimizer, state


@pytest.mark.parametrize(("world_size", "bits"), [(2, 4), (3, 4), (2, 32)])
def test_ranks_send_refreshing_iterations_at_more_bits_and_stay_equal(world_size: int, bits: int) -> None:
    def rank_main(rank: int) -> tuple[list[float], bytes, float]:
        model, optimizer, state = new_run(mqgrad.FixedBits(1), bits=bits)
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


@pytest.mark.parametrize("widths", [[1], [1, 8, 2]])
def test_an_interrupted_run_goes_on_with_the_same_bytes(widths: list[int]) -> None:
    def rank_main(rank: int) -> tuple[list[bytes], list[bytes]]:
        start = lambda: new_run(Scripted(widths, interval=5))  # noqa: E731
        return averages.straight_and_resumed(start, rank, before=18, after=9)

    assert all(straight == resumed for straight, resumed in run_ranks(rank_main, 2))


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
        model, optimizer, state = new_run(telling)
        models.train(model, optimizer, state, rank, range(26))
        state.drain()
        state.close()
        return telling.told

    for told in run_ranks(rank_main, 2):
        assert told == [(4, 1.0)] * 4 + [(1, 1.0)] * 2


def test_gradients_of_several_backwards_are_refused() -> None:
    def rank_main(rank: int) -> str:
        model, optimizer, state = new_run(mqgrad.FixedBits(1))
        models.backward(model, rank, 0)
        models.backward(model, rank, 1)
        with pytest.raises(RuntimeError, match=r"no_sync\(\)") as refused:
            optimizer.step()
        state.close()
        return str(refused.value)

    for rank, told in enumerate(run_ranks(rank_main, 2)):
        assert told.startswith(f"rank {rank}: 2 backwards")


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
        with pytest.raises(TypeError, match=r"must be a mqgrad\.FrozenSecondMoment"):
            mqgrad.CompressionState(controller, optimizer=adam_, second_moment=True)  # type: ignore[arg-type]

    run_ranks(rank_main, 1)
    for wrong in ({"bits": 1}, {"bits": 9}, {"every": 0}, {"floor": -1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}|bit width"):
            mqgrad.FrozenSecondMoment(**wrong)
