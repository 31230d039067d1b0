"""Synchronous data-parallel training through the compression hook: the default method."""

import dataclasses

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad
from mqgrad.statistics import RankStatistics, Totals
from mqgrad.widths import Width

from .base import RankInterval, Setup


@dataclasses.dataclass(kw_only=True, slots=True)
class DDP:
    """``DistributedDataParallel`` with ``mqgrad.compression_hook``."""

    _setup: Setup = dataclasses.field(init=False, repr=False)
    _compression: mqgrad.CompressionState = dataclasses.field(init=False, repr=False)
    _before: Totals = dataclasses.field(init=False, repr=False)
    _losses: list[torch.Tensor] = dataclasses.field(init=False, repr=False)

    def start(self, setup: Setup) -> nn.Module:
        self._setup = setup
        ddp = DistributedDataParallel(setup.model, process_group=setup.group)
        self._compression = mqgrad.CompressionState(
            setup.controller,
            process_group=setup.group,
            compressor=setup.compressor,
            seed=setup.seed,
            link=setup.link,
            timeout_seconds=setup.timeout_seconds,
        )
        ddp.register_comm_hook(self._compression, mqgrad.compression_hook)
        return ddp

    def begin_interval(self, iterations: int, bits: Width | None) -> None:
        if bits is not None:
            self._compression.set_width(bits)
            self._compression.interval = iterations  # gradient figures are taken at its last iteration
        self._before = dataclasses.replace(self._compression.totals)
        self._losses = []
        self._compression.mark()

    def step(self, loss: torch.Tensor) -> None:
        self._setup.optimizer.step()
        self._compression.step(loss)
        self._losses.append(loss.detach())

    def end_interval(self) -> RankInterval:
        return RankInterval(
            statistics=self._statistics(),
            bits=self._compression.bits,
            iteration=self._compression.totals.iterations,
            bit_iterations=self._compression.totals.bit_iterations - self._before.bit_iterations,
            decided_on=self._compression.last_statistics,
        )

    def _statistics(self) -> RankStatistics:
        if self._setup.controller is None:
            return self._compression.take_statistics()
        # What the state collects, gradient figures included, belongs to the controller.
        costs = dataclasses.asdict(self._compression.totals.since(self._before))
        return RankStatistics(losses=[float(loss) for loss in self._losses], **costs)

    def close(self) -> None:
        self._compression.close()
