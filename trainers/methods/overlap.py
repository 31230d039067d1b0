"""Overlap-Local-SGD: averages travel while the next iterations compute."""

import dataclasses
import time

import torch
from torch import nn

from mqgrad.checks import check_not_negative
from mqgrad.collectives.comm_thread import CommThread
from mqgrad.costs import Costs
from mqgrad.widths import Width

from .averaging import LocalSGD
from .base import RankInterval, Setup


@dataclasses.dataclass(kw_only=True)
class OverlapLocalSGD(LocalSGD):
    """Overlap-Local-SGD (Wang, Liang, Joshi, ICASSP 2020). Every ``period`` iterations:

    1. Wait for the average that was started ``period`` iterations ago, and let it move the anchor:
       v ← β·v + (average − z), z ← z + v.
    2. Pull every replica to the anchor: x ← (1 − a)·x + a·z.
    3. Start averaging the replicas x in the background.

    The replicas never become equal; they stay near the anchor.

    An average must not travel while the clock stands still, as in an evaluation: none is started at the end of an
    interval before the next begins, and one that is still under way there is waited for.

    Raises:
        ValueError: for a period that is not positive, or a pull or β that is negative or not finite.
    """

    pull: float = 0.6
    """a: how far a replica is pulled to the anchor."""
    beta: float = 0.7
    """β: momentum of the anchor; 0 makes it the last average."""
    _anchor: torch.Tensor = dataclasses.field(init=False, repr=False)
    _momentum: torch.Tensor = dataclasses.field(init=False, repr=False)
    _replica: torch.Tensor | None = dataclasses.field(init=False, repr=False, default=None)
    """What is to be averaged, once the next iteration begins."""
    _average: torch.futures.Future[torch.Tensor] | None = dataclasses.field(
        init=False, repr=False, default=None
    )
    _left: int = dataclasses.field(init=False, repr=False, default=0)
    """Iterations of this interval."""
    _arrived: Costs = dataclasses.field(init=False, repr=False, default_factory=Costs)
    """Of averages that have arrived, not counted yet."""
    _thread: CommThread = dataclasses.field(init=False, repr=False, default_factory=CommThread)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(pull=self.pull, beta=self.beta)

    def start(self, setup: Setup) -> nn.Module:
        module = super().start(setup)
        self._anchor = self.parameters()
        self._momentum = torch.zeros_like(self._anchor)
        return module

    def begin_interval(self, iterations: int, bits: Width | None) -> None:
        super().begin_interval(iterations, bits)
        self._left = iterations
        self._send()

    def step(self, loss: torch.Tensor) -> None:
        self._left -= 1
        super().step(loss)

    def end_interval(self) -> RankInterval:
        start = time.perf_counter()
        self._await_average()
        costs = Costs(step_seconds=time.perf_counter() - start)
        self.move_costs(costs)
        self._interval.add(costs)
        return super().end_interval()

    def exchange(self) -> None:
        self._await_average()
        if self._average is not None:
            average = self._average.value().div_(self._transport.world_size)
            self._momentum.mul_(self.beta).add_(average - self._anchor)
            self._anchor.add_(self._momentum)
        self._average = None
        self._replica = self.parameters().lerp_(self._anchor, self.pull)
        self.set_parameters(self._replica)
        if self._left > 0:
            self._send()

    def move_costs(self, costs: Costs) -> None:
        costs.add(self._arrived)
        self._arrived = Costs()

    def _await_average(self) -> None:
        """Wait for the average under way, and take what it cost: the thread that counts it is idle only then."""
        if self._average is not None:
            self._average.wait()
            self._transport.move_costs(self._arrived)

    def _send(self) -> None:
        if self._replica is not None:
            replica, self._replica = self._replica, None
            self._average = self._thread.submit(lambda: self._transport.all_reduce_(replica), replica)

    def close(self) -> None:
        self._thread.close()
        super().close()
