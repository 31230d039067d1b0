"""A model whose forward changes its parameters, and an iteration of it."""

import torch
from torch import nn

WIDTH, TOKENS = 16, 200
"""Of the table."""


class LimitedTable(nn.Module):
    """Scales down the rows that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(TOKENS, WIDTH, max_norm=1.0), nn.Linear(WIDTH, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens).mean(1))


def backward(model: nn.Module, rank: int, iteration: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + iteration)
    tokens = torch.randint(TOKENS, (8, 3), generator=generator)
    loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 4)
    loss.backward()
    return loss


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int) -> torch.Tensor:
    optimizer.zero_grad()
    loss = backward(model, rank, iteration)
    optimizer.step()
    return loss
