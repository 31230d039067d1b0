"""A workload's methods as trainings call them: what an own one gets wrong is told in its own terms."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .workload import Batch, Workload


def endless_batches(workload: Workload, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
    """The workload's batches of one rank. Where they end, as a DataLoader's do after an epoch, ``next`` raises a
    ValueError that says so."""
    return _until_their_end(workload.name, rank, workload.batches(rank, world_size, seed))


def _until_their_end(name: str, rank: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    count = 0
    for batch in batches:
        yield batch
        count += 1
    raise ValueError(
        f"workload {name!r} has no batch on rank {rank} after {count}: its batches() must never end; begin with the "
        "data anew where they are through (while True: yield from loader)"
    )


def scheduler_of(workload: Workload, optimizer: Optimizer) -> LRScheduler:
    """Its learning rate by iteration.

    Raises:
        ValueError: it has none.
    """
    scheduler = workload.build_scheduler(optimizer)
    if not hasattr(scheduler, "step"):
        raise ValueError(
            f"build_scheduler() of workload {workload.name!r} returned {scheduler!r}; where the learning rate stays, "
            "return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)"
        )
    return scheduler


def training_loss(workload: Workload, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Its loss of a batch, to go backward from.

    Raises:
        ValueError: what cannot be differentiated, or is not one number.
    """
    loss = workload.loss(model, batch)
    if not isinstance(loss, torch.Tensor):
        found = repr(loss)
    elif loss.numel() != 1:
        found = f"a tensor of shape {list(loss.shape)}"
    elif not loss.requires_grad:
        found = "a tensor without gradient"
    else:
        return loss
    raise ValueError(
        f"loss() of workload {workload.name!r} returned {found}; it must be a tensor of one number, such as the "
        "mean over the batch, that comes from the model and is not detached"
    )


def evaluation_of(workload: Workload, model: nn.Module) -> dict[str, float]:
    """Its held-out figures. The model's modules are in training mode afterwards if they were before: one rank's
    replica alone is evaluated, and would train on without dropout after a forgotten ``model.train()``."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        return workload.evaluate(model)
    finally:
        for module, training in modes:
            module.training = training
