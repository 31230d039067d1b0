"""What the methods without our hook share: their transport, and what an interval has cost."""

import dataclasses
import time

import torch
from torch import nn

from mqgrad.collectives.own_group import own_group
from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.costs import Costs
from mqgrad.statistics.rank import RankStatistics
from mqgrad.widths import Width

from .base import RankInterval, Setup


@dataclasses.dataclass(kw_only=True)
class MeasuredMethod:
    """A method that exchanges over a transport of its own, in every iteration, unless it says otherwise, and in fp32.

    Its ``step`` ends with :meth:`_count`.
    """

    _setup: Setup = dataclasses.field(init=False, repr=False)
    _transport: ProcessGroupTransport = dataclasses.field(init=False, repr=False)
    _iterations: int = dataclasses.field(init=False, repr=False, default=0)
    _interval: RankStatistics = dataclasses.field(init=False, repr=False)
    _step_time: float = dataclasses.field(init=False, repr=False)

    @property
    def can_be_paced(self) -> bool:
        return True

    @property
    def has_exchanged(self) -> bool:
        return True

    def start(self, setup: Setup) -> nn.Module:
        self._setup = setup
        self._transport = ProcessGroupTransport(own_group(setup.group, setup.timeout_seconds), setup.link)
        return setup.model

    def begin_interval(self, iterations: int, bits: Width | None) -> None:
        self._interval = RankStatistics()
        self._step_time = time.perf_counter()

    def end_interval(self) -> RankInterval:
        return RankInterval(statistics=self._interval, bits=32, iteration=self._iterations)

    def move_costs(self, costs: Costs) -> None:
        """Add what communication has cost since the last call."""
        self._transport.move_costs(costs)

    def _count(self, loss: torch.Tensor, waited: float) -> None:
        """End an iteration that has waited for communication for some seconds."""
        now = time.perf_counter()
        seconds, self._step_time = now - self._step_time, now
        costs = Costs(step_seconds=seconds, compute_seconds=seconds - waited)
        self.move_costs(costs)
        self._interval.add(costs)
        self._interval.losses.append(float(loss.detach()))

    def close(self) -> None:
        self._transport.close()
