"""Which optimizer moves the parameters, found from their steps alone."""

import dataclasses

import pytest
import torch
from layouts import bucket_of
from torch import nn

from mqgrad.compressors.base import BucketWork
from mqgrad.layout import LayoutTable
from mqgrad.trainers import ModelClock, Simulated
from mqgrad.update_probe import UpdateProbe

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.5),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}
NORMALIZED = {"adam", "adamw", "rprop"}


def exponent(make_optimizer, shapes: list[tuple[int, ...]], steps: int = 3) -> float:
    """Of gradients that are larger by 3 from one parameter to the next, after some steps."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer, probe = make_optimizer(parameters), UpdateProbe()
    for _ in range(steps):
        for i, parameter in enumerate(parameters):
            parameter.grad = 3.0**-i * torch.randn(parameter.shape, generator=generator)
        for i, parameter in enumerate(parameters):  # a bucket each
            probe.begin(work_of(parameter, i), parameters)
        optimizer.step()
        found = probe.end(parameters)
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


def test_a_gradient_that_no_step_has_followed_is_forgotten() -> None:
    shapes = [(30, 20), (20,), (1000,)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer, probe = torch.optim.SGD(parameters, lr=0.01), UpdateProbe()
    for gradients in ([1.0, 1.0, 1.0], [1.0, 10.0, 100.0]):  # the first ones would tell of Adam
        for i, (parameter, size) in enumerate(zip(parameters, gradients, strict=True)):
            parameter.grad = size * torch.randn(parameter.shape)
            probe.begin(work_of(parameter, i), parameters)
    optimizer.step()
    assert probe.end(parameters) == pytest.approx(1.0, abs=0.1)
    assert probe.end(parameters) == pytest.approx(0.5)


def test_parameters_that_tell_nothing_leave_it_open() -> None:
    assert UpdateProbe().end([]) == pytest.approx(0.5)
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
