"""PyTorch's own data parallelism, without anything of ours in its way."""

import dataclasses
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .averaging import LocalSGD
from .base import Setup
from .post_local import PostLocalSGD


@dataclasses.dataclass(kw_only=True, slots=True)
class PlainDDP(PostLocalSGD):
    """``DistributedDataParallel`` with no communication hook: what comparisons call fp32.

    Its all-reduces run where nothing of ours sees them, so their bytes are those of a ring, and waiting for them is
    part of ``compute_seconds``. An emulated link cannot pace what it does not see: there, a hook calls PyTorch's
    all-reduce, as in the first phase of post-local SGD.
    """

    period: int = dataclasses.field(init=False, default=1)
    warmup: int = dataclasses.field(init=False, default=sys.maxsize)
    _nbytes: int = dataclasses.field(init=False, repr=False)
    """Bytes of all gradients."""

    def start(self, setup: Setup) -> nn.Module:
        if setup.link is not None:
            return PostLocalSGD.start(self, setup)
        model = LocalSGD.start(self, setup)
        self._nbytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        return DistributedDataParallel(model, process_group=setup.group)

    def step(self, loss: torch.Tensor) -> None:
        if self._setup.link is not None:
            PostLocalSGD.step(self, loss)
            return
        self._setup.optimizer.step()
        self._transport.counted_all_reduce(lambda: None, self._nbytes)  # DDP's have taken place
        self._totals.iterations += 1
        self._count(loss, waited=0.0)
