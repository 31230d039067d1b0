"""PyTorch's own data parallelism, without anything of ours in its way."""

import dataclasses
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from mqgrad.checks import check_count

from .base import RankInterval, Setup
from .measured import MeasuredMethod
from .paced_hook import PacedAllReduce

Hook = Literal["none", "fp16", "powersgd"]


@dataclasses.dataclass(kw_only=True)
class PlainDDP(MeasuredMethod):
    """``DistributedDataParallel`` as PyTorch has it, with no communication hook or one of PyTorch's:

    - ``none``: what comparisons call fp32;
    - ``fp16``: ``fp16_compress_hook``, half the bytes;
    - ``powersgd``: ``powerSGD_hook`` at a ``rank``, with error feedback and warm start (Vogels et al., NeurIPS 2019).

    Their all-reduces run where nothing of ours sees them. So their bytes are those of a ring, and waiting for them is
    part of ``compute_seconds``. Nor can an emulated link pace them: there, a hook of ours waits for theirs
    (``allreduce_hook`` for none). PowerSGD's three all-reduces in a row with computation between them cannot be paced
    so.

    Raises:
        ValueError: for an unknown hook; a rank that is missing, not positive, or given without ``powersgd``.
    """

    hook: Hook = "none"
    rank: int | None = None
    """Of PowerSGD's matrices."""
    batch_threads: bool = False
    """Average over a group whose threads do not interrupt those that compute, as our hook does
    (:mod:`mqgrad.collectives.batch_threads`). On an emulated link it does so in any case."""
    _nbytes: int = dataclasses.field(init=False, repr=False)
    """Bytes of all gradients."""
    _paced: PacedAllReduce | None = dataclasses.field(init=False, repr=False, default=None)
    _powersgd: PowerSGDState | None = dataclasses.field(init=False, repr=False, default=None)
    _elements: int = dataclasses.field(init=False, repr=False, default=0)
    """Elements that PowerSGD had sent by the last iteration."""

    def __post_init__(self) -> None:
        if self.hook not in get_args(Hook):
            raise ValueError(f"unknown hook {self.hook!r}; known: {', '.join(get_args(Hook))}")
        if (self.rank is not None) != (self.hook == "powersgd"):
            raise ValueError(
                f"hook {self.hook!r} with rank {self.rank}: hook=powersgd needs a rank, such as "
                "hook=powersgd,rank=4, and no other hook has one"
            )
        if self.rank is not None:
            check_count(rank=self.rank)

    @property
    def can_be_paced(self) -> bool:
        return self.hook != "powersgd"

    def start(self, setup: Setup) -> nn.Module:
        model = super().start(setup)
        self._nbytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        group = self._transport.group if self.batch_threads else setup.group
        ddp = DistributedDataParallel(model, process_group=group, **self._buckets())
        self._register_hook(ddp, group)
        return ddp

    def _buckets(self) -> dict[str, Any]:
        """PowerSGD gets one bucket: its callbacks start all-reduces, with several buckets on Gloo in an order that
        differs between ranks; it then aborts or hangs."""
        return {"bucket_cap_mb": self._nbytes // 2**20 + 1} if self.hook == "powersgd" else {}

    def _register_hook(self, ddp: DistributedDataParallel, group: dist.ProcessGroup) -> None:
        if self._setup.link is not None:
            self._paced = PacedAllReduce(self._transport)
            ddp.register_comm_hook(self._transport.group, self._average_paced)
        elif self.hook == "fp16":
            ddp.register_comm_hook(group, fp16_compress_hook)
        elif self.hook == "powersgd":
            self._powersgd = PowerSGDState(
                group,
                matrix_approximation_rank=self.rank,
                start_powerSGD_iter=2,  # the least that PyTorch allows with error feedback
                orthogonalization_epsilon=1e-8,  # PyTorch's advice where a column may be all zeros
            )
            ddp.register_comm_hook(self._powersgd, powerSGD_hook)

    def step(self, loss: torch.Tensor) -> None:
        self._setup.optimizer.step()
        self._iterations += 1
        if self._paced is not None:
            self._count(loss, self._paced.take_waited())
            return
        self._transport.count(self._transport.all_reduce_bytes(self._reduced_bytes()), 0.0, 0)  # DDP's own
        self._count(loss, waited=0.0)

    def _reduced_bytes(self) -> int:
        """Bytes of what this iteration's all-reduces have summed."""
        if self._powersgd is None:
            return self._nbytes // 2 if self.hook == "fp16" else self._nbytes
        before, self._elements = self._elements, self._powersgd.total_numel_after_compression
        return 4 * (self._elements - before) or self._nbytes  # at first it sends everything

    def _average_paced(
        self, group: dist.ProcessGroup, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """The comm hook on an emulated link."""
        assert self._paced is not None
        if self.hook == "fp16":
            return self._paced.follow(fp16_compress_hook(group, bucket), bucket, itemsize=2)
        return self._paced.follow(allreduce_hook(group, bucket), bucket)

    def end_interval(self) -> RankInterval:
        interval = super().end_interval()
        return dataclasses.replace(interval, bits=16) if self.hook == "fp16" else interval

    def close(self) -> None:
        if self._paced is not None:
            self._paced.close()
        super().close()
