"""A model whose parameters, and so whose gradients, have eight bytes."""

from typing import Any

import torch
from torch import nn

from mqgrad.trainers.workloads.digits import DigitsMLP


class Doubles(DigitsMLP):
    """digits-mlp in double precision."""

    def build_model(self) -> nn.Module:
        return super().build_model().double()

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        return super().loss(model, (images.double(), labels))
