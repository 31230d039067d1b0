"""The optimizer's side of a frozen second moment: what steps leave of Adam's state, without ranks."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from frozen_moments import DUE, unbiased
from torch import nn

import mqgrad
from mqgrad.hook.second_moment import SecondMoments

STEPS = 40


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
        for t, (own, refreshes) in enumerate(zip(gradients(), refreshed, strict=True), start=1):
            g = own[k].double()
            since += 1
            if not refreshes and since == 1:
                v = v.clamp(min=(0.01 * v.mean()).bfloat16().double())
            m, m_weight = betas[0] * m + (1 - betas[0]) * g, betas[0] * m_weight + 1 - betas[0]
            # The step itself is PyTorch's, in which its own gradient always counts, once.
            weight = (1 - betas[1]) / (1 - betas[1] ** t)
            own_moment = (1 - weight) * (v / v_weight if t > 1 else v) + weight * g**2
            x = x * (1 - 0.01 * decay)
            x -= 0.01 * (m / m_weight) / (own_moment.sqrt() + 1e-8)
            if refreshes:
                kept = betas[1] ** since
                v, v_weight = kept * v + (1 - kept) * g**2, kept * v_weight + 1 - kept
                since = 0
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


def test_what_a_frozen_step_leaves_is_adams_state() -> None:
    """Of a second moment as it was, and of as many steps: other optimizers can go on with it."""
    (parameter,), optimizer = adam(3)
    refreshes = True
    moments = SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: refreshes)
    for i in range(9):
        refreshes = i < 4
        parameter.grad = torch.full((3,), 2.0 if refreshes else 20.0)
        optimizer.step()
        torch.testing.assert_close(unbiased(optimizer, parameter), torch.full((3,), 4.0))
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert float(optimizer.state[parameter]["step"]) == 9
    moments.close()
    optimizer.step()
    assert float(unbiased(optimizer, parameter)[0]) == pytest.approx(4 + (400 - 4) / 10, rel=1e-2)


def test_after_many_steps_of_its_own_adam_forgets_as_slowly_as_before() -> None:
    (parameter,), optimizer = adam(3)
    parameter.grad = torch.full((3,), 2.0)
    for _ in range(500):
        optimizer.step()
    refreshed = iter([True, False, True])
    SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: next(refreshed))
    for gradient in (2.0, 50.0, 4.0):
        parameter.grad = torch.full((3,), gradient)
        optimizer.step()
    weight = (1 - 0.999**2) / (1 - 0.999**503)
    torch.testing.assert_close(
        unbiased(optimizer, parameter), torch.full((3,), 4 + weight * (16 - 4)), rtol=1e-4, atol=0
    )


def test_parameters_without_a_gradient_or_with_none_but_zeros_move_no_further_than_by_adam() -> None:
    """Their second moment is that of their first step, or zero; a step's own square bounds it."""
    (zero, late, unused), optimizer = adam(3, 3, 3)
    refreshes = True
    SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: refreshes)
    dict(optimizer.state[unused])  # which makes an empty one
    for i in range(24):
        refreshes = i < 17
        zero.grad = torch.zeros(3) if refreshes else torch.full((3,), 0.1)
        late.grad = None if refreshes else torch.full((3,), 0.5)
        optimizer.step()
    torch.testing.assert_close(unbiased(optimizer, late), torch.full((3,), 0.25))
    torch.testing.assert_close(late.detach(), torch.full((3,), 1 - 7 * 0.01))
    assert 1 - 7 * 0.05 < float(zero.detach()[0]) < 1
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    optimizer.step()


@pytest.mark.parametrize("size", [1, 200])
@pytest.mark.parametrize("used", [lambda i: i >= 138, lambda i: i > 100 and i % 12 == 0])
@pytest.mark.parametrize("refreshed_from", [144, 400])
def test_a_second_moment_is_never_negative(size: int, used: Any, refreshed_from: int) -> None:
    """Also of a parameter that has had fewer steps than there were since others were refreshed."""
    (often, seldom), optimizer = adam(3, size)
    generator = torch.Generator().manual_seed(1)
    refreshes = True
    SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: refreshes)
    for i in range(240):
        refreshes = i in DUE or i >= refreshed_from
        often.grad = torch.randn(3, generator=generator)
        seldom.grad = torch.randn(size, generator=generator) ** 3 if used(i) else None
        optimizer.step()
        for state in optimizer.state.values():
            assert state["exp_avg_sq"].min() >= 0
    assert torch.isfinite(seldom).all()


def test_a_long_frozen_second_moment_may_meet_a_gradient_of_zero() -> None:
    """Where it is forgotten but for rounding."""
    (parameter,), optimizer = adam(1000)
    refreshes = True
    SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: refreshes)
    for i in range(12_000):
        refreshes = i in (0, 11_999)
        parameter.grad = torch.linspace(0.1, 7, 1000) if i < 11_999 else torch.zeros(1000)
        optimizer.step()
    assert float(optimizer.state[parameter]["exp_avg_sq"].min()) >= 0


def test_a_step_that_fails_leaves_the_next_ones_right() -> None:
    (parameter,), optimizer = adam(3)
    refreshed = iter([True, False, False, False])
    SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: next(refreshed))

    def interrupted() -> float:
        raise KeyboardInterrupt

    parameter.grad = torch.ones(3)
    for closure in (None, None, interrupted, None):
        if closure is None:
            optimizer.step()
        else:
            with pytest.raises(KeyboardInterrupt):
                optimizer.step(closure)
        torch.testing.assert_close(unbiased(optimizer, parameter), torch.ones(3))


def test_a_step_that_a_fused_kernel_skips_changes_nothing() -> None:
    """As with a gradient scaler, where a gradient is infinite: also a parameter's first one."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.01, fused=True)
    refreshed = iter([True, False, False, True, True])
    SecondMoments(mqgrad.FrozenSecondMoment(), optimizer, lambda: next(refreshed))
    for skipped in (True, False, True, True, False):
        parameter.grad = torch.full((3,), math.inf if skipped else 2.0)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(float(skipped))
        optimizer.step()
        assert torch.isfinite(parameter).all()
    torch.testing.assert_close(unbiased(optimizer, parameter), torch.full((3,), 4.0))
