"""A small workload that misbehaves on one rank at one iteration; workers import it by name."""

import dataclasses
import os
import signal
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from mqgrad.trainers.workloads.schedules import warmup_constant
from mqgrad.trainers.workloads.workload import Batch

_TO_HANG_IN_BACKWARD = 5  # rows of a batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faulty:
    """Linear regression of noise, so that workers start without a data library."""

    fault: str = ""
    """``raise``, ``eof`` as of a file that was cut off, ``hang``, ``exit``, ``crash`` as C++ does, ``interrupt`` as
    by Ctrl-C, ``end`` of the batches; ``hang-in-backward``; ``stay-in-evaluation`` after one; while the model is
    built ``build`` to raise and ``hang-at-start``, on all ranks ``chatter`` to print 3 MB."""
    rank: int = 1
    iteration: int = 5
    width: int = 8
    has_buffers: bool = False
    """Whether the ranks meet in forward, too."""
    has_dropout: bool = False

    @property
    def name(self) -> str:
        return "faulty"

    def build_model(self) -> nn.Module:
        if self.fault == "hang-at-start" and dist.get_rank() == self.rank:
            time.sleep(600)
        if self.fault == "chatter":
            print("x" * 3 * 2**20)
        if self.fault == "build":
            raise ArithmeticError("this model cannot be built")
        layers = [nn.Linear(self.width, 100), *([nn.BatchNorm1d(100)] if self.has_buffers else [])]
        layers += [nn.Dropout()] if self.has_dropout else []
        return nn.Sequential(*layers)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def build_scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        return warmup_constant(optimizer, 1)

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed * world_size + rank)
        iteration = 0
        while True:
            rows = 4
            if rank == self.rank and iteration == self.iteration:
                if self.fault == "end":
                    return
                if self.fault == "hang-in-backward":
                    rows = _TO_HANG_IN_BACKWARD
                self._misbehave()
            yield (
                torch.randn(rows, self.width, generator=generator),
                torch.randn(rows, 100, generator=generator),
            )
            iteration += 1

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        outputs = model(inputs)
        if len(inputs) == _TO_HANG_IN_BACKWARD:
            outputs.register_hook(lambda _: time.sleep(600))
        return (outputs - targets).square().mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self.fault == "stay-in-evaluation":
            model.eval()
        return {"loss": 0.0}

    def _misbehave(self) -> None:
        if self.fault == "eof":
            raise EOFError("the file ended early")
        if self.fault == "raise":
            raise ArithmeticError("the data of this rank is broken")
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun waits 30 s for a rank that ignores it
            time.sleep(600)
        if self.fault == "crash":
            signal.raise_signal(signal.SIGSEGV)
        if self.fault == "exit":
            os._exit(7)


def not_a_workload() -> object:
    return object()
