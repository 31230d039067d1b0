"""Overlap-Local-SGD: averages travel while the next iterations compute."""

import dataclasses

import torch
from torch import nn

from mqgrad.comm_thread import CommThread

from .averaging import LocalSGD
from .base import Setup


@dataclasses.dataclass(kw_only=True, slots=True)
class OverlapLocalSGD(LocalSGD):
    """Overlap-Local-SGD (Wang, Liang, Joshi, ICASSP 2020). Every ``period`` iterations:

    1. Wait for the average that was started ``period`` iterations ago, and let it move the anchor:
       v ← β·v + (average − z), z ← z + v.
    2. Pull every replica to the anchor: x ← (1 − a)·x + a·z.
    3. Start averaging the replicas x in the background.

    The replicas never become equal; they stay near the anchor.
    """

    pull: float = 0.6
    """a: how far a replica is pulled to the anchor."""
    beta: float = 0.0
    """β: momentum of the anchor; 0 makes it the last average."""
    _anchor: torch.Tensor = dataclasses.field(init=False, repr=False)
    _momentum: torch.Tensor = dataclasses.field(init=False, repr=False)
    _average: torch.futures.Future[torch.Tensor] | None = dataclasses.field(
        init=False, repr=False, default=None
    )
    _thread: CommThread = dataclasses.field(init=False, repr=False, default_factory=CommThread)

    def start(self, setup: Setup) -> nn.Module:
        module = LocalSGD.start(self, setup)
        self._anchor = self.parameters()
        self._momentum = torch.zeros_like(self._anchor)
        return module

    def exchange(self) -> None:
        if self._average is not None:
            average = self._average.wait().div_(self._transport.world_size)
            self._momentum.mul_(self.beta).add_(average - self._anchor)
            self._anchor.add_(self._momentum)
        replica = self.parameters().lerp_(self._anchor, self.pull)
        self.set_parameters(replica)
        self._average = self._thread.submit(lambda: self._transport.all_reduce_(replica), replica)

    def close(self) -> None:
        self._thread.close()
        LocalSGD.close(self)
