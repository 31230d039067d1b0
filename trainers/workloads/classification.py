"""How well a model tells classes apart."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F


def held_out_figures(
    model: nn.Module, parts: Iterable[torch.Tensor], labels: torch.Tensor
) -> dict[str, float]:
    """``loss`` (nats) and ``accuracy`` of the model on held-out examples; nothing is dropped out meanwhile.

    Args:
        parts: inputs, a few at a time.
        labels: of all of them, int64 [N].
    """
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in parts])
    model.train()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return {"loss": F.cross_entropy(logits, labels).item(), "accuracy": accuracy.item()}
