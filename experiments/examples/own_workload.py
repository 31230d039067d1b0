"""A model of your own in the training environment, found from the folder that the command is called in.

cd experiments/examples
mqgrad train runs/spirals --workload own_workload:Spirals --set width=128 --link-mbit-per-s 20 --total-seconds 120
"""

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

Batch = tuple[torch.Tensor, torch.Tensor]


def spirals(points: int, generator: torch.Generator) -> Batch:
    """Points of three noisy arms of a spiral: float32 [points, 2], and whose they are, int64 [points]."""
    arm = torch.randint(3, (points,), generator=generator)
    radius = torch.rand(points, generator=generator)
    angle = 4 * radius + 2 * math.pi / 3 * arm + 0.2 * torch.randn(points, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spirals:
    """What ``mqgrad.trainers.Workload`` asks for; the fields are its settings (``--set width=128``)."""

    width: int = 256
    batch_size: int = 64

    @property
    def name(self) -> str:
        return "spirals"

    def build_model(self) -> nn.Module:
        hidden = [nn.Linear(2, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(self.width, 3))

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-3)

    def build_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return ConstantLR(optimizer, factor=1.0)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed * world_size + rank)  # no two ranks draw the same
        while True:
            yield spirals(self.batch_size, generator)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        points, arms = batch
        return nn.functional.cross_entropy(model(points), arms)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        points, arms = spirals(1000, torch.Generator().manual_seed(-1))  # no rank's
        logits = model(points)  # (of a model with dropout: model.eval()(points))
        loss = nn.functional.cross_entropy(logits, arms).item()
        return {"loss": loss, "accuracy": (logits.argmax(dim=1) == arms).float().mean().item()}
