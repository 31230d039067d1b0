"""Rounds of local iterations: parameters are averaged every so often, instead of gradients every time."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..compressors.base import BucketWork
from ..layout import Layout
from ..saved_state import check_keys
from .common_start import digest
from .layout_table import LayoutTable, unscaled
from .queued_collectives import QueuedCollectives
from .round_memory import RoundMemory
from .round_settings import RoundSettings

_SAVED = (
    "iterations",
    "last_period",
    "anchors",
    "unshared",
    "velocities",
    "corrections",
    "digests",
    "trained",
)
UNREGISTERED = (
    "call ddp.register_comm_hook(state, mqgrad.compression_hook); the first backward must go through it"
)

_FROZEN = (
    "what is not averaged was frozen in each backward through the hook and whenever step() was called, or DDP was "
    "wrapped anew without it. Let what is frozen for a part of each iteration have its backward through the hook, "
    "not under no_sync(); after unfreezing wrap the model anew where a round has ended, after finish_round(); change "
    "parameters by hand on no rank"
)

_CHANGED = (
    "changed between the end of a round and the next backward: call state.step() after optimizer.step(), or replicas "
    "differ where replicas_are_equal says that they do not; and change parameters by hand on no rank (what forward "
    "changes, as nn.Embedding(max_norm=...) does, is averaged)"
)


class LocalRounds:
    """Which parameters this rank's rounds average, and when; what that does to them is
    :class:`mqgrad.hook.round_memory.RoundMemory`'s.

    Args:
        settings: of the rounds.
        layouts: knows the parameters.
        queued: what ranks do together.
    """

    def __init__(self, settings: RoundSettings, layouts: LayoutTable, queued: QueuedCollectives) -> None:
        self.iterations = 0
        """Complete iterations of the round under way."""
        self._layouts, self._rank, self._queued = layouts, f"rank {layouts.rank}", queued
        self._memory = RoundMemory(
            settings.slow_momentum, layouts, variance_reduced=settings.variance_reduced
        )
        self._buckets: list[Layout] = []
        """As they last came through the hook. Not all come in every backward: there is ``no_sync()``, and DDP may be
        told to keep those to itself whose parameters nobody has used."""
        self._came: set[Layout] = set()
        """Of these, since a backward's last one."""
        self._expected: dict[int, str] = {}
        """By parameter: what the model was saved with, until it has been looked at."""
        self._trained: set[int] = set()
        """Parameters that were not frozen in a backward or at an end of an iteration of the round under way."""
        self._is_averaging = False
        """Whether a mean is under way, or parameters are being moved to it: an interruption leaves some undone."""
        self._is_at_rest = False
        """Whether nothing is to have moved parameters since a round has ended; until a backward after that has ended,
        as it may be the first of several in its iteration, with a step each."""
        self._has_told = False
        """Whether it has warned of parameters that moved though."""

    def pass_on(self, bucket: dist.GradBucket, layout: Layout) -> torch.futures.Future[torch.Tensor]:
        """The comm hook of a local iteration: the gradients as they are.

        Raises:
            RuntimeError: parameters first come through the hook after a step, when the ranks have parted.
        """
        if layout not in self._buckets:  # DDP has regrouped its parameters
            others = [known for known in self._buckets if not set(known.keys) & set(layout.keys)]
            self._buckets = [*others, layout]
        self._came.add(layout)
        if bucket.is_last():  # what DDP brings no more is not averaged
            self._buckets = [b for b in self._buckets if b in self._came or self._layouts.is_active(b.keys)]
            self._came.clear()
        self._know(layout)
        self._is_at_rest = self._is_at_rest and not bucket.is_last()
        self._note_trained(layout.keys)
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        future.set_result(buffer)
        return future

    def _note_trained(self, keys: Iterable[int]) -> None:
        self._trained.update(key for key in keys if self._layouts.parameters[key].requires_grad)

    def _know(self, layout: Layout) -> None:
        """Take the anchors where the run begins; those that were loaded go to where the parameters are.

        Warns:
            RuntimeWarning: once, if a round begins where parameters are not where the one before has left them.
        """
        known = [key for key in layout.keys if self._memory.knows(key)]
        for key in layout.keys:
            self._check_loaded(key)
            if self._memory.knows(key):
                self._memory.follow_to_device(key)
                continue
            if self.iterations > 0:
                raise RuntimeError(
                    f"{self._rank}: no gradient before step {self.iterations} of a round: {UNREGISTERED}, and bring "
                    "all parameters (leave skip_all_reduce_unused_params out); with others than before, wrap the "
                    "model anew where a round has ended, after finish_round()"
                )
            self._memory.begin(key)
        if known and self._is_at_rest and not self._has_told:
            self._check_unmoved(known)

    def _check_unmoved(self, keys: Sequence[int]) -> None:
        moved = self._memory.seems_moved(keys)
        if moved is None:
            return
        self._has_told = True
        shape = tuple(self._layouts.parameters[moved].shape)
        warnings.warn(
            f"{self._rank}: a parameter of shape {shape} {_CHANGED}",
            RuntimeWarning,
            stacklevel=6,
        )

    def _check_loaded(self, key: int) -> None:
        expected = self._expected.pop(key, None)
        if expected is not None and expected != self._own_digest(key):
            raise RuntimeError(
                f"{self._rank}: its parameters are not those that it had when the loaded state was saved: load each "
                "rank's own model after DDP has wrapped it, which gives all ranks the parameters of rank 0; another "
                "model begins with a new state. (Or forward changes them, and does more than scale rows of matrices: "
                "let it change buffers)"
            )

    def end_iteration(self) -> None:
        """Count an iteration, and correct its step.

        Raises:
            RuntimeError: no gradient of the model has come through the hook.
        """
        self._check_backward()
        self._note_trained(self._memory.keys)  # under no_sync() no bucket comes
        if self.iterations == 0:
            self._memory.correct_only(self._active & self._trained)
        self.iterations += 1
        self._is_at_rest = False
        self._memory.correct_step()

    def _check_backward(self) -> None:
        if not self._buckets:
            raise RuntimeError(f"{self._rank}: step() without a backward through the hook: {UNREGISTERED}")

    def _check_uninterrupted(self) -> None:
        """Others may have gone on from a mean that has reached a part of the parameters here, or none."""
        if self._is_averaging:
            raise RuntimeError(
                f"{self._rank}: interrupted while a round was averaged: go back to a checkpoint, with a new state"
            )

    @property
    def _active(self) -> set[int]:
        """Parameters of the buckets."""
        return {key for layout in self._buckets for key in layout.keys}

    def finish(self, period: int) -> None:
        """End the round, of so many iterations or before: average what parameters have moved, and go on from there.

        Averaged is what any rank has trained. The others stay as they are, as error feedback would move them by what
        it owes, and buckets of others alone are not sent.

        All or nothing on each rank: what fails leaves it with its own parameters. (A mean that only one of them
        receives corrupt is applied by the others, who are then told by what they wait for next.)

        1. Ranks agree on what they have, and in the first round on where it began.
        2. A rank that has not trained all that it has waits for the others' masks, those that have send theirs along.
        3. All that any of them has trained is averaged, bucket by bucket, and then applied.

        Raises:
            RuntimeError: no gradient of the model has come through the hook; a parameter has moved that was frozen
                all the time, or is not DDP's any more; the average failed, or one before it was interrupted.
        """
        if self._expected and not self._buckets:
            raise RuntimeError(
                f"{self._rank}: finish_round() after load_state_dict(): make an iteration first (forward, backward, "
                "optimizer.step(), state.step()), in which the loaded parameters are looked at"
            )
        self._check_backward()
        self._check_uninterrupted()
        self._queued.open_round()
        self._memory.share(self._queued.make_equal)
        averaged, mask = self._active, self._trained_mask()
        unsent_mask: torch.Tensor | None = mask
        if not averaged <= self._trained:
            averaged &= set(self._queued.maximum(mask).nonzero().flatten().tolist())
            unsent_mask = None
        self._check_others(averaged)
        self._is_averaging = True
        works = [self._moved(layout) for layout in self._buckets if averaged.intersection(layout.keys)]
        self._average(works, unsent_mask)
        self._apply(works, averaged, period)

    def _average(self, works: list[BucketWork], unsent_mask: torch.Tensor | None) -> None:
        """Together with the mask, if that has not been sent."""
        masks = [unsent_mask] + [None] * (len(works) - 1)
        averages = [
            self._queued.average(work, is_last=work is works[-1], period=self.iterations, own_mask=mask)
            for work, mask in zip(works, masks, strict=True)
        ]
        for mean in averages:
            mean.wait()

    def _trained_mask(self) -> torch.Tensor:
        """By key, 1 for what this rank has trained."""
        keys = range(len(self._layouts.parameters))
        return torch.tensor([key in self._trained for key in keys], dtype=torch.uint8)

    def _check_others(self, averaged: set[int]) -> None:
        """What moves and is not averaged would part the replicas."""
        if not averaged:
            raise RuntimeError(
                f"{self._rank}: a round of {self.iterations} iterations trained nothing: {_FROZEN}"
            )
        moved = [key for key in self._memory.keys if key not in averaged and self._memory.has_moved(key)]
        if moved:
            shapes = ", ".join(str(tuple(self._layouts.parameters[key].shape)) for key in moved)
            raise RuntimeError(
                f"{self._rank}: parameters of shapes {shapes} moved in a round that does not train them: {_FROZEN}"
            )

    def _moved(self, layout: Layout) -> BucketWork:
        """In the shapes of the parameters, by which some compressors go."""
        moves = [self._memory.move(key, self.iterations) for key in layout.keys]
        buffer = torch.cat([move.reshape(-1) for move in moves])
        pieces = zip(moves, buffer.split(layout.numels), strict=True)
        return BucketWork(buffer, [piece.view_as(move) for move, piece in pieces], layout)

    def _apply(self, works: list[BucketWork], averaged: set[int], period: int) -> None:
        """Go on from the means that the buckets hold now."""
        means = {
            key: mean for work in works for key, mean in zip(work.layout.keys, work.gradients, strict=True)
        }
        means = {key: mean for key, mean in means.items() if key in averaged}
        self._memory.go_on(means, iterations=self.iterations, period=period)
        self.iterations, self._is_averaging, self._is_at_rest = 0, False, True
        self._trained.clear()

    @property
    def seen(self) -> tuple[list[Layout], dict[int, str]]:
        """What no saved state holds and a refused load has to put back: the buckets seen, and digests of loaded
        parameters that have not been compared yet."""
        return list(self._buckets), dict(self._expected)

    @seen.setter
    def seen(self, seen: tuple[list[Layout], dict[int, str]]) -> None:
        self._buckets, self._expected = seen

    def state_dict(self) -> dict[str, Any]:
        """State as tensors and plain types.

        Raises:
            RuntimeError: an average was interrupted: residuals are of a mean that parameters have not moved to.
        """
        self._check_uninterrupted()
        return {
            "iterations": self.iterations,
            "digests": {key: self._digest_of(key) for key in self._memory.keys},
            "trained": sorted(self._trained),
            **self._memory.state_dict(),
        }

    def _digest_of(self, key: int) -> str:
        """Of a parameter, or what was loaded as long as the parameter has not come through the hook."""
        loaded = self._expected.get(key)
        return self._own_digest(key) if loaded is None else loaded

    def _own_digest(self, key: int) -> str:
        return digest(unscaled(self._layouts.parameters[key])).hex()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned on this rank."""
        check_keys(state, _SAVED, "rounds of local iterations")
        self.iterations, self._trained = state["iterations"], set(state["trained"])
        self._buckets, self._expected, self._is_at_rest = [], dict(state["digests"]), False
        self._memory.load_state_dict(state)
