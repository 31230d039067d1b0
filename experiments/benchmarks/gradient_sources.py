"""What the codes of rate_distortion.py are tried on: made-up gradients, and gradients recorded in training."""

from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from mqgrad.hook.layout_table import LayoutTable
from mqgrad.layout import Layout
from mqgrad.trainers.clusters.virtual_ranks import VirtualBucket
from mqgrad.trainers.workloads.workload import make_workload

SHAPE = (1024, 1024)  # of a made-up gradient
WORLD_SIZE = 4  # of the layout, which pads to it
EARLY, LATE = 3, 100  # iterations before the recorded one


class Source(NamedTuple):
    """Gradients of one model on one rank, as a DDP bucket holds them."""

    name: str
    gradients: list[torch.Tensor]

    @property
    def numel(self) -> int:
        return sum(gradient.numel() for gradient in self.gradients)

    def layout(self, bucket_size: int) -> Layout:
        """How the hook lays them out before it codes them."""
        bucket = cast(
            dist.GradBucket, VirtualBucket(0, True, self.gradients)
        )  # only DDP can make a GradBucket
        layout, _ = LayoutTable(bucket_size=bucket_size, world_size=WORLD_SIZE).of(bucket)
        return layout


def synthetic() -> list[Source]:
    """Gaussian, Laplace, and a Gaussian of which 99 % is zero."""
    generator = torch.Generator().manual_seed(0)
    gaussian = torch.randn(SHAPE, generator=generator)
    sign = torch.randint(0, 2, SHAPE, generator=generator) * 2 - 1
    laplace = sign * torch.empty(SHAPE).exponential_(generator=generator)
    sparse = torch.randn(SHAPE, generator=generator) * (torch.rand(SHAPE, generator=generator) < 0.01)
    return [Source("Gaussian", [gaussian]), Source("Laplace", [laplace]), Source("99 % zeros", [sparse])]


def recorded(workload_name: str) -> list[Source]:
    """Gradients of one rank's batch, early and late in a short training run in fp32."""
    torch.manual_seed(0)
    workload = make_workload(workload_name)
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    scheduler = workload.build_scheduler(optimizer)
    batches = workload.batches(0, WORLD_SIZE, 0)
    sources = []
    for iteration in range(LATE + 1):
        optimizer.zero_grad()
        workload.loss(model, next(batches)).backward()
        if iteration in (EARLY, LATE):
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            sources.append(Source(f"{workload_name}, iteration {iteration}", gradients))
        optimizer.step()
        scheduler.step()
    return sources
