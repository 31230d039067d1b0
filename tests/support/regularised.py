"""A small workload with dropout and batch normalisation; workers import it by name."""

import dataclasses

from torch import nn

from mqgrad.trainers.workloads.digits import Digits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regularised(Digits):
    """Digits through layers whose forward pass draws random numbers and changes buffers."""

    @property
    def name(self) -> str:
        return "regularised"

    def build_model(self) -> nn.Module:
        hidden = (nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3))
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(24, 10))
