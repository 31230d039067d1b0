"""What workloads share that tell classes apart."""

import dataclasses
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mqgrad.checks import check_count

from .schedules import warmup_constant, warmup_cosine
from .sharding import batch_indices, check_dirichlet_alpha
from .workload import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification:
    """Batches are inputs and labels, int64 [batch_size].

    Raises:
        ValueError: an invalid setting.
    """

    batch_size: int = 32
    """Examples per rank and iteration."""
    warmup_iterations: int = 100
    decay_iterations: int = 0
    """The learning rate falls to 0 within these, as half a cosine does: the iterations of a whole training. 0: it
    stays."""
    dirichlet_alpha: float | None = None
    """Ranks see the classes unequally often, the more so the smaller this is; None deals examples out alike. See
    ``trainers.workloads.sharding.dirichlet_partition``."""

    def __post_init__(self) -> None:
        check_count(batch_size=self.batch_size)
        check_count(0, warmup_iterations=self.warmup_iterations, decay_iterations=self.decay_iterations)
        check_dirichlet_alpha(self.dirichlet_alpha)

    def build_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """A warm-up, then the same learning rate throughout, unless ``decay_iterations`` say when it falls to 0."""
        if self.decay_iterations:
            return warmup_cosine(optimizer, self.warmup_iterations, self.decay_iterations)
        return warmup_constant(optimizer, self.warmup_iterations)

    def batch_indices(
        self, labels: torch.Tensor, rank: int, world_size: int, seed: int
    ) -> Iterator[torch.Tensor]:
        """Of a rank's examples among those with these labels: see :func:`.sharding.batch_indices`."""
        return batch_indices(
            labels,
            batch_size=self.batch_size,
            rank=rank,
            world_size=world_size,
            seed=seed,
            dirichlet_alpha=self.dirichlet_alpha,
        )

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy in nats."""
        inputs, labels = batch
        return F.cross_entropy(model(inputs), labels)


def held_out_figures(
    model: nn.Module, parts: Iterable[torch.Tensor], labels: torch.Tensor
) -> dict[str, float]:
    """``loss`` (nats) and ``accuracy`` of the model on held-out examples; nothing is dropped out meanwhile.

    Args:
        parts: inputs, a few at a time.
        labels: of all of them, int64 [N].
    """
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in parts])
    model.train()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return {"loss": F.cross_entropy(logits, labels).item(), "accuracy": accuracy.item()}
