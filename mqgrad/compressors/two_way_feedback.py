"""Error feedback of a coded mean on both of its ways."""

from collections.abc import Set
from typing import Any

import torch

from ..collectives.transport import Transport
from ..layout import Layout
from .base import BucketWork
from .feedback import Residual
from .parameter_memory import ParameterMemory
from .shard_feedback import ShardFeedback

FEEDBACKS = ("push_feedback", "pull_feedback")
"""Names in a saved state."""


class TwoWayFeedback:
    """What a rank owes: of its own gradient and, where means are coded again, of those of the shards that it owns."""

    def __init__(self) -> None:
        self.push = ParameterMemory()
        self.pull = ShardFeedback()

    def __len__(self) -> int:
        """Parameters that have a residual; equal on all ranks."""
        return len(self.push)

    def holds(self, layout: Layout) -> bool:
        """Whether any parameter of the layout has a residual."""
        return self.push.holds(layout)

    def residuals(
        self, layout: Layout, transport: Transport, owned: range, *, recoded: bool
    ) -> tuple[Residual, Residual | None]:
        """Of a layout's gradients and of the means of the shards ``owned``, None unless those are ``recoded``.

        What was owed on means that are not coded again is owed on the gradient from now on. A collective, where
        elements of shards have moved to other owners.
        """
        push = Residual(self.push.flat(layout), 0, layout)
        if not recoded and not self.pull.holds(layout):
            return push, None
        part = slice(owned.start * layout.shard_numel, owned.stop * layout.shard_numel)
        pull = self.pull.residual(layout, part, transport.all_reduce_)
        if recoded:
            return push, pull
        _add_of_mean_(push.values, pull, transport.world_size)
        self.pull.drop(layout)
        return push, None

    def pay(self, work: BucketWork, mean: torch.Tensor) -> None:
        """Replace gradients by the mean [numel] of what ranks had and owed, equal on all of them.

        What the gradients' type cannot hold is owed by all ranks from now on. A step that overflows is not applied,
        and what was owed stays so.
        """
        if not bool(mean.isfinite().all()):
            work.layout.unpack(mean, work.gradients)
            return
        limit = min(torch.finfo(dtype).max for dtype in (work.buffer.dtype, mean.dtype))
        paid = mean.clamp(-limit, limit)
        work.layout.unpack(paid, work.gradients)
        self.push.drop(work.layout)
        self.pull.drop(work.layout)
        rest = mean.sub_(paid).index_fill_(0, work.layout.padding, 0.0)
        if bool(rest.any()):
            self.push.flat(work.layout).copy_(rest)

    def forget(self, keys: Set[int]) -> None:
        """Forget residuals by parameter."""
        self.push.forget(keys)
        self.pull.forget(keys)

    def state_dict(self) -> dict[str, Any]:
        """Both, by parameter."""
        return dict(zip(FEEDBACKS, (self.push.state_dict(), self.pull.state_dict()), strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, which ``state`` may hold among other things."""
        push, pull = (state[name] for name in FEEDBACKS)
        self.push.load_state_dict(push)
        self.pull.load_state_dict(pull)


def add_owed_(vector: torch.Tensor, push: Residual | None, pull: Residual | None, world_size: int) -> None:
    """Add to this rank's gradients [numel] what it owes, so that their mean over ranks pays it."""
    assert push is not None, "nothing is owed without feedback"
    vector.add_(push.values)
    if pull is not None:
        _add_of_mean_(vector, pull, world_size)


def _add_of_mean_(vector: torch.Tensor, pull: Residual, world_size: int) -> None:
    """W times, for the division by W follows."""
    vector[pull.extent].add_(pull.values, alpha=world_size)
