"""Small models in rounds of local iterations, through the state and by hand."""

import contextlib
from collections.abc import Callable

import models
import torch
from torch import nn

import mqgrad

PERIOD, ROUNDS = 3, 3

Step = Callable[[nn.Module, torch.optim.Optimizer, int, int], torch.Tensor]
"""An iteration of a model, alone or in DDP, by rank and iteration; returns its loss."""


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int) -> torch.Tensor:
    optimizer.zero_grad()
    loss = models.backward(model, rank, iteration)
    optimizer.step()
    return loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Without momentum: a gradient of zero is then as good as none, which is what DDP makes of one."""
    return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)


def in_rounds(
    model: nn.Module,
    rank: int,
    take_step: Step = step,
    *,
    bits: float = 32,
    slow_momentum: float = 0.0,
    local: bool = False,
    **ddp_args: object,
) -> nn.Module:
    """Train in DDP; with ``local``, all but the first two iterations under ``no_sync()``."""
    state = mqgrad.CompressionState(mqgrad.FixedBits(bits), period=PERIOD, slow_momentum=slow_momentum)
    ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02, **ddp_args)
    optimizer = sgd(model)
    for iteration in range(PERIOD * ROUNDS):
        with ddp.no_sync() if local and iteration >= 2 else contextlib.nullcontext():
            loss = take_step(ddp, optimizer, rank, iteration)
        state.step(loss)
    assert state.replicas_are_equal
    state.close()
    return model


def by_hand(
    make: Callable[[], nn.Module], take_step: Step = step, *, world_size: int = 2, slow_momentum: float = 0.0
) -> nn.Module:
    """The same with all ranks here, one after another, and anchors in fp32."""
    replicas = [make() for _ in range(world_size)]
    optimizers = [sgd(model) for model in replicas]
    anchors = [p.detach().float().clone() for p in replicas[0].parameters()]
    velocities = [torch.zeros_like(anchor) for anchor in anchors]
    for iteration in range(PERIOD * ROUNDS):
        for rank, (model, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            take_step(model, optimizer, rank, iteration)
        if (iteration + 1) % PERIOD == 0:
            held = zip(*(model.parameters() for model in replicas), strict=True)
            for anchor, velocity, parameters in zip(anchors, velocities, held, strict=True):
                moves = [anchor.to(p.dtype).float() - p.detach().float() for p in parameters]
                anchor -= velocity.mul_(slow_momentum).add_(sum(moves) / world_size)
                for p in parameters:
                    p.data.copy_(anchor)
    return replicas[0]


def raw(model: nn.Module) -> bytes:
    return models.parameters_of(model).numpy().tobytes()


def assert_as_by_hand(model: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(models.parameters_of(model), models.parameters_of(expected), rtol=0, atol=2e-6)
