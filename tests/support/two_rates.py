"""As of fine-tuning: Adam with one rate for the first layer and one for the last; workers import it by name."""

import dataclasses

import torch
from torch import nn

from mqgrad.trainers.workloads.digits import Digits


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoRates(Digits):
    """Digits. Where gradients are small, so is the learning rate."""

    @property
    def name(self) -> str:
        return "two-rates"

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        first, last = ([*model[i].parameters()] for i in (1, 3))
        return torch.optim.Adam([{"params": first, "lr": 1e-5}, {"params": last, "lr": 1e-3}])
