"""``bytes-lstm``: an LSTM language model."""

import dataclasses

import torch
from torch import nn

from .bytes_text import BytesText


@dataclasses.dataclass(frozen=True, kw_only=True)
class BytesLSTM(BytesText):
    """A stack of LSTM layers; 921,000 parameters by default. Every sequence starts from a state of zeros."""

    width: int = 224
    num_layers: int = 2

    @property
    def name(self) -> str:
        return "bytes-lstm"

    def build_model(self) -> nn.Module:
        return LSTM(vocabulary=256, width=self.width, num_layers=self.num_layers)


class LSTM(nn.Module):
    """Next-token logits float32 [N, T, vocabulary] for tokens int64 [N, T]."""

    def __init__(self, *, vocabulary: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, num_layers, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.layers(self.embedding(tokens))
        return self.output(hidden)
