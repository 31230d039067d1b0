"""Post-local SGD: synchronous at first, local from then on, with PyTorch's own parts."""

import dataclasses
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from mqgrad.checks import check_count

from .base import Setup
from .measured import MeasuredMethod
from .paced_hook import PacedAllReduce


@dataclasses.dataclass(kw_only=True)
class PostLocalSGD(MeasuredMethod):
    """Post-local SGD (Lin, Stich, Patel and Jaggi, ICLR 2020): ``warmup`` iterations of DDP, then local SGD.

    PyTorch's ``post_localSGD_hook`` averages gradients in the first phase, its ``PeriodicModelAverager`` parameters
    in the second: after its first iteration and every ``period`` iterations from there. Both run on our transport's
    group and clock, so that their bytes are counted and an emulated link paces them.

    Raises:
        ValueError: for a setting that is not positive.
    """

    period: int = 8
    """Iterations between two averages of parameters."""
    warmup: int = 50
    """Iterations in which gradients are averaged."""
    _averager: PeriodicModelAverager = dataclasses.field(init=False, repr=False)
    _paced: PacedAllReduce = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_count(period=self.period, warmup=self.warmup)

    @property
    def has_exchanged(self) -> bool:
        local = self._iterations - self.warmup - 1
        return local < 0 or local % self.period == 0

    def start(self, setup: Setup) -> nn.Module:
        model = super().start(setup)
        group = self._transport.group
        self._paced = PacedAllReduce(self._transport)
        self._averager = PeriodicModelAverager(self.period, self.warmup, process_group=group)
        ddp = DistributedDataParallel(model, process_group=setup.group, broadcast_buffers=False)
        state = PostLocalSGDState(group, None, self.warmup, post_local_gradient_allreduce=False)
        ddp.register_comm_hook(state, self._average_gradients)
        return ddp

    def step(self, loss: torch.Tensor) -> None:
        self._setup.optimizer.step()
        start = time.perf_counter()
        self._average_parameters()
        self._iterations += 1
        self._count(loss, self._paced.take_waited() + time.perf_counter() - start)

    def _average_parameters(self) -> None:
        parameters = list(self._setup.model.parameters())
        local = self._averager.step - self.warmup
        if local < 0 or local % self.period:
            self._averager.average_parameters(parameters)  # only counts the iteration
            return
        nbytes = sum(parameter.nbytes for parameter in parameters)
        self._transport.counted_all_reduce(lambda: self._averager.average_parameters(parameters), nbytes)

    def _average_gradients(
        self, state: PostLocalSGDState, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """The comm hook."""
        is_local = state.iter >= state.start_localSGD_iter
        mean = post_localSGD_hook(state, bucket)
        return mean if is_local else self._paced.follow(mean, bucket)

    def close(self) -> None:
        self._paced.close()
        super().close()
