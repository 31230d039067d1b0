"""``bytes-gpt`` and ``bytes-gpt-large``: decoder blocks with pre-norm, learned positions, tied embeddings."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from mqgrad.checks import check_count

from .bytes_text import BytesText


@dataclasses.dataclass(frozen=True, kw_only=True)
class BytesGPT(BytesText):
    """A small GPT of 835,000 parameters by default.

    Raises:
        ValueError: also for a ``width`` that ``num_heads`` does not divide.
    """

    num_heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(num_heads=self.num_heads)
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}")

    @property
    def name(self) -> str:
        return "bytes-gpt"

    def build_model(self) -> nn.Module:
        return GPT(
            vocabulary=256,
            context=self.context,
            width=self.width,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BytesGPTLarge(BytesGPT):
    """6.4 million parameters, few bytes an iteration: at 100 Mbit/s an fp32 gradient takes longer than compute."""

    batch_size: int = 4
    width: int = 256
    num_layers: int = 8
    learning_rates: ClassVar[Mapping[str, float]] = {"adam": 1e-3, "sgd": 0.05}

    @property
    def name(self) -> str:
        return "bytes-gpt-large"


class GPT(nn.Module):
    """Next-token logits float32 [N, T, vocabulary] for tokens int64 [N, T], T at most ``context``."""

    def __init__(self, *, vocabulary: int, context: int, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention_out.weight", "mlp_out.weight")):
                # The residual stream's variance does not grow with the depth (GPT-2).
                nn.init.normal_(parameter, std=0.02 / (2 * num_layers) ** 0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden)
        return F.linear(self.norm(hidden), self.token_embedding.weight)


class Block(nn.Module):
    """Causal self-attention, then a GELU layer of four times the width, each added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention_out(self._attend(self.attention_norm(hidden)))
        return hidden + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(hidden))))

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        projected = self.attention_in(hidden).view(batch, length, 3, self.num_heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # each [N, heads, T, width / heads]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
