"""Which optimizer moves the parameters, found from their steps alone."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace

import models
import pytest
import torch
from layouts import bucket_of
from ranks import run_ranks
from scripted import Scripted
from torch import nn

import mqgrad
from mqgrad.compressors.base import BucketWork
from mqgrad.hook.layout_table import LayoutTable
from mqgrad.hook.param_groups import check_optimizer
from mqgrad.hook.update_probe import UpdateProbe
from mqgrad.trainers import ModelClock, Simulated

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.5),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}
NORMALIZED = {"adam", "adamw", "rprop"}


def exponent(
    make_optimizer, shapes: list[tuple[int, ...]], steps: int = 3, *, is_known: bool = False
) -> float:
    """Of gradients that are larger by 3 from one parameter to the next, after some steps."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer = make_optimizer(parameters)
    probe = UpdateProbe(optimizer if is_known else None)
    for _ in range(steps):
        for i, parameter in enumerate(parameters):
            parameter.grad = 3.0**-i * torch.randn(parameter.shape, generator=generator)
        for i, parameter in enumerate(parameters):  # a bucket each
            probe.begin(work_of(parameter, i), parameters)
        optimizer.step()
        probe.note_step(parameters)
        found = probe.end()
    return found


def work_of(parameter: nn.Parameter, key: int) -> BucketWork:
    assert parameter.grad is not None
    table = LayoutTable(bucket_size=512, world_size=2)
    layout, _ = bucket_of(table, [parameter.detach()])
    return BucketWork(parameter.grad.reshape(-1), [parameter.grad], dataclasses.replace(layout, keys=(key,)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_that_grow_with_gradients_are_told_from_those_that_do_not(name: str) -> None:
    found = exponent(OPTIMIZERS[name], [(30, 20), (20,), (5, 4, 3), (1000,)])
    assert found == pytest.approx(0.0 if name in NORMALIZED else 1.0, abs=0.1)


def with_rates(optimizer: type[torch.optim.Optimizer], rates: Sequence[float | torch.Tensor]):
    """A group for each parameter."""
    return lambda p: optimizer(
        [{"params": [own], "lr": rate} for own, rate in zip(p, rates, strict=True)], lr=1e-3
    )


@pytest.mark.parametrize(
    "rates", [[1e-2, 1e-3, 1e-4, 1e-5], [1e-5, 1e-4, 1e-3, 1e-2], [1e-3, 0.0, 1e-2, 1e-4]]
)
@pytest.mark.parametrize(("optimizer", "expected"), [(torch.optim.SGD, 1.0), (torch.optim.Adam, 0.0)])
def test_learning_rates_of_groups_do_not_count(optimizer, expected: float, rates: list[float]) -> None:
    shapes = [(30, 20), (20,), (5, 4, 3), (1000,)]
    assert exponent(with_rates(optimizer, rates), shapes, is_known=True) == pytest.approx(expected, abs=0.1)


def test_without_the_optimizer_learning_rates_are_taken_for_the_gradients_doing() -> None:
    shapes, rates = (
        [(30, 20), (20,), (5, 4, 3), (1000,)],
        [1e-2, 1e-3, 1e-4, 1e-5],
    )  # as gradients fall, or against
    assert exponent(with_rates(torch.optim.Adam, rates), shapes) == pytest.approx(1.0, abs=0.1)
    assert exponent(with_rates(torch.optim.SGD, rates[::-1]), shapes) == pytest.approx(0.0, abs=0.1)


def test_rates_are_those_of_the_step_that_followed_and_may_be_tensors() -> None:
    """A scheduler changes them between the step and the end of the iteration."""
    parameters = [nn.Parameter(torch.randn(100)) for _ in range(3)]
    optimizer = with_rates(torch.optim.SGD, [torch.tensor(rate) for rate in (1e-1, 1e-3, 1e-2)])(parameters)
    probe = UpdateProbe(optimizer)
    for i, parameter in enumerate(parameters):
        parameter.grad = 3.0**i * torch.randn(100)
        probe.begin(work_of(parameter, i), parameters)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    probe.note_step(parameters)
    assert probe.end() == pytest.approx(1.0, abs=0.1)


def test_parameters_in_no_group_are_left_out() -> None:
    parameters = [nn.Parameter(torch.randn(100)) for _ in range(4)]
    optimizer, stranger = torch.optim.SGD(parameters[:3], lr=0.01), parameters[3]
    probe = UpdateProbe(optimizer)
    for i, parameter in enumerate(parameters):
        parameter.grad = 3.0**i * torch.randn(100)
        probe.begin(work_of(parameter, i), parameters)
    optimizer.step()
    with torch.no_grad():
        stranger.add_(1e-6 * torch.randn(100))  # by another one, which would tell of the opposite
    probe.note_step(parameters)
    assert probe.end() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        [],
        {"param_groups": []},
        SimpleNamespace(param_groups=[{"lr": 0.1}]),
        SimpleNamespace(param_groups=3),
    ],
)
def test_what_is_no_optimizer_is_named(wrong: object) -> None:
    with pytest.raises(
        TypeError, match=f"optimizer is of type {type(wrong).__name__}, and has no param_groups"
    ):
        check_optimizer(wrong, in_rounds=False)


def test_a_rate_that_is_no_number_is_named_and_none_at_all_is_right() -> None:
    """There are optimizers that find their own."""
    for rate in ("fast", torch.ones(2)):
        with pytest.raises(TypeError, match="a number as 'lr'"):
            check_optimizer(SimpleNamespace(param_groups=[{"params": [], "lr": rate}]), in_rounds=False)
    check_optimizer(
        SimpleNamespace(param_groups=[{"params": []}, {"params": [], "lr": None}]), in_rounds=False
    )
    check_optimizer(None, in_rounds=True)


def test_an_optimizer_that_ranks_share_is_refused_in_rounds() -> None:
    def rank_main(rank: int) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of what torch itself uses

        model = models.small_model()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        for rounds in ({"period": 2}, {"period_rule": mqgrad.DelayRatio()}):
            with pytest.raises(ValueError, match=r"optimizer is a ZeroRedundancyOptimizer, .* or no rounds"):
                mqgrad.CompressionState(mqgrad.FixedBits(4), optimizer=optimizer, **rounds)
        mqgrad.CompressionState(mqgrad.FixedBits(4), optimizer=optimizer).close()

    run_ranks(rank_main)


def test_a_run_reads_its_optimizer() -> None:
    def rank_main(rank: int, is_known: bool) -> float:
        model = models.small_model()
        rates = [1e-3 if parameter.ndim > 1 else 1e-5 for parameter in model.parameters()]
        optimizer = with_rates(torch.optim.Adam, rates)(list(model.parameters()))
        controller = Scripted([32])
        state = mqgrad.CompressionState(controller, optimizer=optimizer if is_known else None)
        models.train(models.compressed_ddp(model, state), optimizer, state, rank, range(9))
        state.close()
        return controller.seen[-1].update_exponent

    known, unknown = (run_ranks(lambda rank, k=k: rank_main(rank, k), 1)[0] for k in (True, False))
    assert known == pytest.approx(0.0, abs=0.3)
    assert abs(unknown - known) > 0.3


def test_a_gradient_that_no_step_has_followed_is_forgotten() -> None:
    shapes = [(30, 20), (20,), (1000,)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer, probe = torch.optim.SGD(parameters, lr=0.01), UpdateProbe()
    for gradients in ([1.0, 1.0, 1.0], [1.0, 10.0, 100.0]):  # the first ones would tell of Adam
        for i, (parameter, size) in enumerate(zip(parameters, gradients, strict=True)):
            parameter.grad = size * torch.randn(parameter.shape)
            probe.begin(work_of(parameter, i), parameters)
    optimizer.step()
    probe.note_step(parameters)
    assert probe.end() == pytest.approx(1.0, abs=0.1)
    probe.note_step(parameters)
    assert probe.end() == pytest.approx(0.5)


def test_what_a_script_does_to_parameters_after_the_step_does_not_count() -> None:
    """As where it evaluates with averages of them."""
    parameters = [nn.Parameter(torch.randn(shape)) for shape in [(30, 20), (20,), (1000,)]]
    optimizer, probe = torch.optim.SGD(parameters, lr=0.01), UpdateProbe()
    for i, (parameter, size) in enumerate(zip(parameters, [1.0, 10.0, 100.0], strict=True)):
        parameter.grad = size * torch.randn(parameter.shape)
        probe.begin(work_of(parameter, i), parameters)
    optimizer.step()
    probe.note_step(parameters)
    with torch.no_grad():
        for parameter in parameters:
            parameter.normal_()
    probe.note_step(parameters)
    assert probe.end() == pytest.approx(1.0, abs=0.1)


def test_parameters_that_tell_nothing_leave_it_open() -> None:
    assert UpdateProbe().end() == pytest.approx(0.5)
    assert exponent(OPTIMIZERS["sgd"], [(30, 20)]) == pytest.approx(0.5)  # one: no slope
    assert exponent(lambda p: torch.optim.SGD(p, lr=0.0), [(30, 20), (20,)]) == pytest.approx(0.5)  # at rest
    assert exponent(OPTIMIZERS["sgd"], [(0,), (30, 20)]) == pytest.approx(0.5)
    assert exponent(
        lambda p: torch.optim.SGD(p, lr=float("inf")), [(30, 20), (20,)], steps=1
    ) == pytest.approx(0.5)


@pytest.mark.parametrize(("optimizer", "low", "high"), [("sgd", 0.7, 1.0), ("adam", 0.0, 0.3)])
@pytest.mark.parametrize("bits", [1, 32])
def test_a_run_tells_its_controller(optimizer: str, low: float, high: float, bits: int) -> None:
    clock = ModelClock(compute_seconds=0.01, mbit_per_s=100)
    settings = {"width": 64, "optimizer": optimizer}
    with Simulated("digits-mlp", settings, num_workers=2, clock=clock) as cluster:
        cluster.reset(0)
        found = [cluster.run(5, bits=bits).update_exponent for _ in range(8)]
        assert low <= sum(found) / len(found) <= high
        cluster.reset(0, controller=f"fixed:{bits},interval=5")
        assert cluster.run(5).update_exponent == found[0]
