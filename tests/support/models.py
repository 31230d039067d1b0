"""Small models and loops for tests of the hook."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad

Run = tuple[DistributedDataParallel, torch.optim.Optimizer, mqgrad.CompressionState]


def small_model(width: int = 64, layers: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 4))


def batch(rank: int, iteration: int, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + iteration)
    x = torch.randn(16, width, generator=generator, dtype=torch.float32)
    return x, (x[:, :4].argmax(dim=1))


def compressed_ddp(
    model: nn.Module, state: mqgrad.CompressionState, **ddp: object
) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(model, **ddp)  # type: ignore[arg-type]
    wrapped.register_comm_hook(state, mqgrad.compression_hook)
    return wrapped


def backward(model: nn.Module, rank: int, iteration: int) -> torch.Tensor:
    x, y = batch(rank, iteration)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: mqgrad.CompressionState,
    rank: int,
    iterations: range,
) -> list[bytes]:
    """Train and return each iteration's averaged gradient as bytes."""
    gradients = []
    for iteration in iterations:
        optimizer.zero_grad()
        loss = backward(model, rank, iteration)
        gradients.append(gradient_of(model).numpy().tobytes())
        optimizer.step()
        state.step(loss)
    return gradients


def gradient_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def parameters_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def new_run(controller: Any, **state_args: Any) -> Run:
    """A small model in DDP with our hook, its optimizer and the state."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = mqgrad.CompressionState(controller, **state_args)
    # Small buckets: DDP regroups them after the first iteration, which the run must not notice.
    return compressed_ddp(model, state, bucket_cap_mb=0.02), optimizer, state
