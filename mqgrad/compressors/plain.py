"""Gradients without a code of their own: in half precision, or not sent at all."""

import dataclasses

import torch

from ..stopwatch import add_seconds
from ..widths import Width
from .base import BucketWork, CompressorDefaults, Step


@dataclasses.dataclass(kw_only=True)
class FP16(CompressorDefaults):
    """PyTorch's ``fp16_compress_hook``: cast to float16, divide by W, all-reduce in float16, cast back.

    What exceeds 65504 overflows to infinity, and a sum of W terms is rounded to 11 bits at each addition.
    """

    @property
    def widths(self) -> tuple[Width, ...]:
        return (16,)

    def average_(self, work: BucketWork, step: Step) -> None:
        with add_seconds(step.costs, "encode_seconds"):
            half = work.buffer.to(torch.float16).div_(step.transport.world_size)
        step.transport.all_reduce_(half)
        with add_seconds(step.costs, "decode_seconds"):
            work.buffer.copy_(half)


@dataclasses.dataclass(kw_only=True)
class NoCommunication(CompressorDefaults):
    """Every rank keeps its own gradient: what an iteration takes when no gradient is sent.

    The one compressor that breaks the contract: replicas diverge, so losses after the first iteration belong to W
    unrelated runs, and only times mean something.
    """

    def average_(self, work: BucketWork, step: Step) -> None:
        pass
