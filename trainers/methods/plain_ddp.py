"""PyTorch's own data parallelism, without anything of ours in its way."""

import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from .averaging import LocalSGD
from .base import Setup
from .paced_hook import PacedAllReduce


@dataclasses.dataclass(kw_only=True, slots=True)
class PlainDDP(LocalSGD):
    """``DistributedDataParallel`` with no communication hook: what comparisons call fp32.

    Its all-reduces run where nothing of ours sees them. So their bytes are those of a ring, and waiting for them is
    part of ``compute_seconds``. Nor can an emulated link pace them: there, ``allreduce_hook`` does the same.
    """

    period: int = dataclasses.field(init=False, default=1)
    _nbytes: int = dataclasses.field(init=False, repr=False)
    """Bytes of all gradients."""
    _paced: PacedAllReduce | None = dataclasses.field(init=False, repr=False, default=None)

    def start(self, setup: Setup) -> nn.Module:
        model = LocalSGD.start(self, setup)
        self._nbytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        ddp = DistributedDataParallel(model, process_group=setup.group)
        if setup.link is not None:
            self._paced = PacedAllReduce(self._transport)
            ddp.register_comm_hook(self._transport.group, self._average_gradients)
        return ddp

    def step(self, loss: torch.Tensor) -> None:
        self._setup.optimizer.step()
        self._totals.iterations += 1
        if self._paced is not None:
            self._count(loss, self._paced.take_waited())
            return
        self._transport.counted_all_reduce(lambda: None, self._nbytes)  # DDP's have taken place
        self._count(loss, waited=0.0)

    def _average_gradients(
        self, group: dist.ProcessGroup, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """The comm hook."""
        assert self._paced is not None
        return self._paced.follow(allreduce_hook(group, bucket), bucket)

    def close(self) -> None:
        if self._paced is not None:
            self._paced.close()
        LocalSGD.close(self)
