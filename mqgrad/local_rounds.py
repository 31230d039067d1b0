"""Rounds of local iterations: parameters are averaged every so often, instead of gradients every time."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from .checks import check_count, check_keep
from .compressors.base import BucketWork
from .controllers.period_rules import PeriodRule
from .layout import Layout, LayoutTable
from .saved_state import check_keys

Average = Callable[[BucketWork, bool, int], torch.futures.Future[torch.Tensor]]

_SAVED = ("iterations", "last_period", "anchors", "velocities", "corrections", "digests", "trained")
UNREGISTERED = (
    "call ddp.register_comm_hook(state, mqgrad.compression_hook); the first backward must go through it"
)

_FROZEN = (
    "what is not averaged was frozen in each backward through the hook and whenever step() was called, or DDP was "
    "wrapped anew without it. Let what is frozen for a part of each iteration have its backward through the hook, "
    "not under no_sync(); wrap the model again after unfreezing; change parameters by hand on no rank"
)


def check_rounds(period: object, momentum: float, *, variance_reduced: bool, rule: PeriodRule | None) -> None:
    """Raise ``ValueError`` for a period that is no positive integer, a momentum outside [0, 1); for momentum or
    variance reduction without rounds."""
    check_count(period=period)
    check_keep(slow_momentum=momentum)
    if period == 1 and rule is None and (momentum > 0 or variance_reduced):
        raise ValueError(
            f"slow_momentum={momentum!r}, variance_reduced={variance_reduced!r} need rounds of local iterations: "
            "give a period above 1, or a period_rule"
        )


class LocalRounds:
    """What this rank remembers of its rounds. With z the parameters that all ranks have when a round begins:

    1. In each of τ iterations rank r steps with its own gradient, from z to x_r; with variance reduction then
       x_r ← x_r − m_r.
    2. How far it has moved by its own steps, d_r ← z − x_r − τ·m_r, is averaged over the ranks in place of a
       gradient: through the same codes, error feedback and statistics.
    3. u ← β·u + mean d, z ← z − u, m_r ← (mean d − d_r)/τ, and all ranks go on from x_r ← z.

    Local SGD (Stich, ICLR 2019) for β = 0, otherwise SlowMo (Wang et al., ICLR 2020, algorithm 1, with α = 1 and a
    learning rate that stays); coded with error feedback as Qsparse-local-SGD is (Basu et al., NeurIPS 2019). The
    optimizer's own state stays with each rank.

    m is VRL-SGD's (Liang et al. 2019, algorithm 1, −Δ in units of a move): it keeps ranks whose data differ from
    drifting apart, and costs no bytes. There z − x_r is averaged, which is the same as long as the mean is exact.
    With codes it is not: the corrections would take back what they leave out, and error feedback could not repay it.
    What is averaged then does not vanish where the ranks' gradients cancel, nor does the noise of its code, which m
    follows.

    Where the period changes, u is scaled to what a round of the new one moves. A round that is finished after k of τ
    iterations counts as k/τ of one: z ← z − (k/τ)·β·u − mean d, and u and m go that part of their way.

    Args:
        momentum: β.
        layouts: knows the parameters.
        variance_reduced: whether there is m; it costs another copy of the model.
    """

    def __init__(self, momentum: float, layouts: LayoutTable, *, variance_reduced: bool) -> None:
        self._is_variance_reduced = variance_reduced
        self.iterations = 0
        """Complete iterations of the round under way."""
        self._momentum = momentum
        self._layouts = layouts
        self._buckets: list[Layout] = []
        """As they last came through the hook. Not all come in every backward: there is ``no_sync()``, and DDP may be
        told to keep those to itself whose parameters nobody has used."""
        self._anchors: dict[int, torch.Tensor] = {}
        """By parameter: z, in fp32 at least."""
        self._velocities: dict[int, torch.Tensor] = {}
        """By parameter: u; empty without momentum."""
        self._last_period = 0
        """Iterations of a round that u is of."""
        self._corrections: dict[int, torch.Tensor] = {}
        """By parameter: m; empty without variance reduction, and in the first round."""
        self._expected: dict[int, str] = {}
        """By parameter: what the model was saved with, until it has been looked at."""
        self._trained: set[int] = set()
        """Parameters that were not frozen in a backward or at an end of an iteration of the round under way."""
        self._is_averaging = False
        """Whether a mean is under way, or parameters are being moved to it: an interruption leaves some undone."""

    def pass_on(self, bucket: dist.GradBucket, layout: Layout) -> torch.futures.Future[torch.Tensor]:
        """The comm hook of a local iteration: the gradients as they are.

        Raises:
            RuntimeError: parameters first come through the hook after a step, when the ranks have parted.
        """
        if layout not in self._buckets:  # DDP has regrouped its parameters
            others = [known for known in self._buckets if not set(known.keys) & set(layout.keys)]
            self._buckets = [*others, layout]
        self._know(layout)
        self._note_trained(layout.keys)
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        future.set_result(buffer)
        return future

    def _note_trained(self, keys: Iterable[int]) -> None:
        self._trained.update(key for key in keys if self._layouts.parameters[key].requires_grad)

    def _know(self, layout: Layout) -> None:
        """Take the anchors where the run begins; those that were loaded go to where the parameters are."""
        for key in layout.keys:
            self._check_loaded(key)
            device, loaded = self._layouts.parameters[key].device, self._anchors.get(key)
            if loaded is None:
                if self.iterations > 0:
                    raise RuntimeError(
                        f"no gradient before step {self.iterations} of a round: {UNREGISTERED}, and bring all "
                        "parameters (leave skip_all_reduce_unused_params out)"
                    )
                self._anchors[key] = self._value(key).clone()
            elif loaded.device != device:
                for tensors in (self._anchors, self._velocities, self._corrections):
                    if key in tensors:
                        tensors[key] = tensors[key].to(device)

    def _check_loaded(self, key: int) -> None:
        expected = self._expected.pop(key, None)
        if expected is not None and expected != _digest(self._layouts.parameters[key]):
            raise RuntimeError(
                "this rank's parameters are not those that it had when the loaded state was saved: load each rank's "
                "own model after DDP has wrapped it, which gives all ranks the parameters of rank 0; another model "
                "begins with a new state"
            )

    @torch.no_grad()
    def end_iteration(self) -> None:
        """Count an iteration, and correct its step.

        Raises:
            RuntimeError: no gradient of the model has come through the hook.
        """
        self._check_backward()
        self._note_trained(self._anchors)  # under no_sync() no bucket comes
        if self.iterations == 0:
            averaged = self._averaged()
            self._corrections = {key: m for key, m in self._corrections.items() if key in averaged}
        self.iterations += 1
        for key, correction in self._corrections.items():
            self._layouts.parameters[key].sub_(correction)

    def _check_backward(self) -> None:
        if not self._buckets:
            raise RuntimeError(f"step() without a backward through the hook: {UNREGISTERED}")

    def _averaged(self) -> set[int]:
        """Parameters that the round trains. The others stay as they are: error feedback would move them by what it
        owes; and buckets of others alone are not sent."""
        return {key for layout in self._buckets for key in layout.keys if key in self._trained}

    def finish(self, period: int, average: Average) -> None:
        """End the round, of so many iterations or before: average what parameters have moved, and go on from there.

        All or nothing on each rank: what fails leaves it with its own parameters. (A mean that only one of them
        receives corrupt is applied by the others, who are then told by what they wait for next.)

        Args:
            average: starts to average a bucket, told whether it is the last one and how many iterations it is of.

        Raises:
            RuntimeError: no gradient of the model has come through the hook; a parameter has moved that was frozen
                all the time, or is not DDP's any more; the average failed.
        """
        self._check_backward()
        averaged = self._averaged()
        self._check_others(averaged)
        self._is_averaging = True
        works = [self._moved(layout) for layout in self._buckets if averaged.intersection(layout.keys)]
        averages = [average(work, work is works[-1], self.iterations) for work in works]
        for mean in averages:
            mean.wait()
        self._apply(works, averaged, period)

    def _check_others(self, averaged: set[int]) -> None:
        """What moves and is not averaged would part the replicas."""
        if not averaged:
            raise RuntimeError(f"a round of {self.iterations} iterations trained nothing: {_FROZEN}")
        moved = [key for key in self._anchors if key not in averaged and self._has_moved(key)]
        if moved:
            shapes = ", ".join(str(tuple(self._layouts.parameters[key].shape)) for key in moved)
            raise RuntimeError(
                f"parameters of shapes {shapes} moved in a round that does not train them: {_FROZEN}"
            )

    def _has_moved(self, key: int) -> bool:
        return not torch.equal(self._stored(key).nan_to_num(), self._value(key).nan_to_num())

    def _moved(self, layout: Layout) -> BucketWork:
        """In the shapes of the parameters, by which some compressors go."""
        buffer = torch.cat([self._move(key).reshape(-1) for key in layout.keys])
        pieces = zip(layout.keys, buffer.split(layout.numels), strict=True)
        return BucketWork(buffer, [piece.view_as(self._anchors[key]) for key, piece in pieces], layout)

    def _move(self, key: int) -> torch.Tensor:
        """By this rank's own steps."""
        moved = self._stored(key) - self._value(key)
        if key in self._corrections:
            moved.sub_(self._corrections[key], alpha=self.iterations)
        return moved

    def _value(self, key: int) -> torch.Tensor:
        parameter = self._layouts.parameters[key].detach()
        return parameter.to(torch.promote_types(parameter.dtype, torch.float32))

    def _stored(self, key: int) -> torch.Tensor:
        """The anchor, as the parameter holds it: what 16 bits round off is no move."""
        anchor = self._anchors[key]
        return anchor.to(self._layouts.parameters[key].dtype).to(anchor.dtype)

    @torch.no_grad()
    def _apply(self, works: list[BucketWork], averaged: set[int], period: int) -> None:
        """Move the anchors by the means that the buckets hold now, and the parameters to them."""
        part = min(self.iterations / period, 1.0)
        for velocity in self._velocities.values():  # of frozen parameters, too
            velocity.mul_(period / (self._last_period or period))
        for work in works:
            for key, mean in zip(work.layout.keys, work.gradients, strict=True):
                if key in averaged:
                    self._move_to_mean(key, mean, part)
        self._last_period, self.iterations, self._is_averaging = period, 0, False
        self._trained.clear()

    def _move_to_mean(self, key: int, mean: torch.Tensor, part: float) -> None:
        if self._is_variance_reduced:
            self._follow_drift(key, mean, part)
        step = self._slow_step(key, mean, part) if self._momentum else mean
        self._layouts.parameters[key].copy_(self._anchors[key].sub_(step))

    def _follow_drift(self, key: int, mean: torch.Tensor, part: float) -> None:
        drift = (mean - self._move(key)).div_(self.iterations)
        self._corrections[key] = torch.lerp(self._corrections.get(key, torch.zeros_like(drift)), drift, part)

    def _slow_step(self, key: int, mean: torch.Tensor, part: float) -> torch.Tensor:
        velocity = self._velocities.setdefault(key, torch.zeros_like(mean))
        step = mean.add(velocity, alpha=part * self._momentum)
        velocity.mul_(1 - part * (1 - self._momentum)).add_(mean)
        return step

    @property
    def seen(self) -> tuple[list[Layout], dict[int, str]]:
        """What no saved state holds: the buckets that have come, and the parameters that have not since loading."""
        return list(self._buckets), dict(self._expected)

    @seen.setter
    def seen(self, seen: tuple[list[Layout], dict[int, str]]) -> None:
        self._buckets, self._expected = seen

    def state_dict(self) -> dict[str, Any]:
        """State as tensors and plain types.

        Raises:
            RuntimeError: an average was interrupted: residuals are of a mean that parameters have not moved to.
        """
        if self._is_averaging:
            raise RuntimeError(
                "interrupted while a round was averaged: go back to a checkpoint, with a new state"
            )
        return {
            "iterations": self.iterations,
            "last_period": self._last_period,
            "digests": {key: self._digest_of(key) for key in self._anchors},
            "anchors": {key: anchor.clone() for key, anchor in self._anchors.items()},
            "velocities": {key: velocity.clone() for key, velocity in self._velocities.items()},
            "corrections": {key: correction.clone() for key, correction in self._corrections.items()},
            "trained": sorted(self._trained),
        }

    def _digest_of(self, key: int) -> str:
        """Of a parameter, or what was loaded as long as the parameter has not come through the hook."""
        loaded = self._expected.get(key)
        return _digest(self._layouts.parameters[key]) if loaded is None else loaded

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned on this rank."""
        check_keys(state, _SAVED, "rounds of local iterations")
        self.iterations, self._last_period = state["iterations"], state["last_period"]
        self._buckets, self._expected = [], dict(state["digests"])
        self._anchors = {key: anchor.clone() for key, anchor in state["anchors"].items()}
        self._velocities = {key: velocity.clone() for key, velocity in state["velocities"].items()}
        self._corrections = {key: correction.clone() for key, correction in state["corrections"].items()}
        self._trained = set(state["trained"])


def _digest(x: torch.Tensor) -> str:
    """Of a parameter's bytes."""
    content = x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content.tobytes(), digest_size=8).hexdigest()
