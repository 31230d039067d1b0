"""What one rank does: build a replica, train it for an interval, evaluate it."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.tensors import bytes_of
from mqgrad.widths import Width

from ..link import LinkEmulation
from ..methods import DEFAULT_METHOD, RankInterval, Setup, TrainingMethod, make_method
from ..workloads.calls import endless_batches, evaluation_of, scheduler_of, training_loss
from ..workloads.smooth import compressor_for
from ..workloads.workload import Batch, Workload
from .cluster import ControllerSpec, own_controller


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """Everything that a run has and the next one gets anew."""

    model: nn.Module
    module: nn.Module
    """The model as the method wraps it."""
    optimizer: Optimizer
    scheduler: LRScheduler
    batches: Iterator[Batch]
    method: TrainingMethod
    link: LinkEmulation | None


class TrainingSession:
    """One rank of a cluster. All ranks call the same methods with the same arguments in the same order.

    Args:
        workload: what to train.
        group: the ranks; its backend's collectives must be usable from CPU tensors.
        timeout_seconds: bound on every wait for another rank.
    """

    def __init__(self, workload: Workload, group: dist.ProcessGroup, timeout_seconds: float = 60.0) -> None:
        self.workload = workload
        self.rank = group.rank()
        self.world_size = group.size()
        self.position = (0, 0)
        """Steps begun, and the places where ranks meet that the current one has come to: forward, of a model with
        buffers, and backward. If a rank hangs on its own and the others wait for it, none has a smaller position."""
        self._group = group
        self._timeout_seconds = timeout_seconds
        self._replica: Replica | None = None

    def reset(
        self,
        seed: int,
        *,
        link: LinkEmulation | None = None,
        controller: ControllerSpec | None = None,
        compressor: str = DEFAULT_COMPRESSOR,
        method: str = DEFAULT_METHOD,
    ) -> None:
        """Begin a run; see :class:`mqgrad.trainers.clusters.cluster.Cluster`."""
        self._begin_step()
        self.close()
        torch.manual_seed(seed)  # the same initial weights on every rank
        model = self.workload.build_model()
        optimizer = self.workload.build_optimizer(model)
        scheduler = scheduler_of(self.workload, optimizer)
        batches = endless_batches(self.workload, self.rank, self.world_size, seed)
        self._come_to_meeting()
        run_method = make_method(method)
        setup = Setup(
            model=model,
            optimizer=optimizer,
            group=self._group,
            seed=seed,
            link=link,
            controller=own_controller(controller),
            compressor=compressor_for(self.workload, compressor, self.world_size),
            timeout_seconds=self._timeout_seconds,
        )
        self._replica = Replica(
            model=model,
            module=run_method.start(setup),
            optimizer=optimizer,
            scheduler=scheduler,
            batches=batches,
            method=run_method,
            link=link,
        )
        torch.manual_seed(seed * self.world_size + self.rank)  # dropout and the like differ between ranks
        if link is not None:
            link.begin()

    def run(self, iterations: int, bits: Width | None = None, *, to_exchange: bool = False) -> RankInterval:
        """Train; see :class:`mqgrad.trainers.clusters.cluster.Cluster`."""
        replica = self._started()
        with contextlib.nullcontext() if replica.link is None else replica.link.training():
            replica.method.begin_interval(iterations, bits)
            for _ in range(iterations):
                self._train_step(replica)
            while to_exchange and not replica.method.has_exchanged:
                self._train_step(replica)
            return replica.method.end_interval()

    def evaluate(self) -> dict[str, float]:
        """Held-out figures, of rank 0's replica, on rank 0 only."""
        return evaluation_of(self.workload, self._model) if self.rank == 0 else {}

    def digest(self) -> str:
        """Hash of all parameters' bytes."""
        return digest_of(self._model)

    def read_data(self) -> None:
        """Fetch a batch: what it is read or downloaded from may be slower here than elsewhere."""
        next(endless_batches(self.workload, self.rank, self.world_size, seed=0))

    def warm_up(self) -> None:
        """Pay first-time costs (lazy imports, kernel selection) here rather than in the first interval."""
        self.reset(seed=0)
        self.run(2, bits=4)
        self.close()

    def close(self) -> None:
        """End the run."""
        if self._replica is not None:
            self._replica.method.close()
            self._replica = None

    @property
    def _model(self) -> nn.Module:
        return self._started().model

    def _started(self) -> Replica:
        if self._replica is None:
            raise RuntimeError("call reset(seed) before anything else")
        return self._replica

    def _train_step(self, replica: Replica) -> None:
        self._begin_step()
        batch = next(replica.batches)
        self._come_to_meeting()
        replica.optimizer.zero_grad()
        loss = training_loss(self.workload, replica.module, batch)
        self._come_to_meeting()
        loss.backward()
        replica.method.step(loss)
        replica.scheduler.step()

    def _begin_step(self) -> None:
        self.position = (self.position[0] + 1, 0)

    def _come_to_meeting(self) -> None:
        steps, meetings = self.position
        self.position = (steps, meetings + 1)


def digest_of(model: nn.Module) -> str:
    """Of all parameters' bytes, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for parameter in model.parameters():
        digest.update(bytes_of(parameter))
    return digest.hexdigest()
