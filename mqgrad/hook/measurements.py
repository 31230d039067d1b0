"""What one rank measures of a run: of the iteration and the interval under way, and in all."""

import dataclasses
from typing import Any

import torch

from ..costs import Costs, Totals
from ..saved_state import restored
from ..statistics.rank import RankStatistics
from ..widths import Width

KEPT_LOSSES = 10_000
"""At least as many are kept, and those of an interval, where nobody takes them."""


class Measurements:
    """Costs and losses on one rank.

    Where ranks average at the end of rounds, such a round counts as one iteration here, except in ``totals``.
    Communication adds to ``open_costs``, which count in the interval and in the totals when the iteration is closed.
    """

    def __init__(self) -> None:
        self._round: list[tuple[torch.Tensor | float, Costs | None]] = []
        """Losses and seconds of the round under way."""
        self.totals = Totals()
        self.statistics = RankStatistics()
        """Of the interval under way, but for its losses."""
        self.losses: list[torch.Tensor | float] = []
        """Of the interval under way, the last ones: see :data:`KEPT_LOSSES`."""
        self.open_costs = Costs()
        """Of the iteration under way."""

    def report(self, loss: torch.Tensor | float, costs: Costs | None) -> None:
        """Take in an iteration's loss, as :func:`check_loss` has it, and, where they are known, its seconds;
        :meth:`end_round` counts them."""
        self._round.append((_own(loss), costs))
        if costs is not None:
            self.totals.add(costs)

    def extend(self, costs: Costs | None) -> None:
        """Add seconds to the last iteration reported, as far as those are known."""
        before = self._round[-1][1]
        if costs is not None and before is not None:
            before.add(costs)
            self.totals.add(costs)

    def end_round(self, interval: int) -> bool:
        """Count the iterations since the last round as one, of an interval of so many.

        An iteration that was not timed is taken to last as long as the next; in an interval of one iteration it is
        left out.

        Returns:
            whether it counts.
        """
        loss, costs = _combined(self._round)
        self._round = []
        if counts := costs is not None or interval > 1:
            self.losses.append(loss)
            del self.losses[: -max(interval, KEPT_LOSSES)]
        if costs is None:  # only the bytes of such an iteration are known
            self.statistics = RankStatistics(wire_bytes=self.statistics.wire_bytes if self.losses else 0.0)
            return counts
        follows_untimed = len(self.losses) == 2 and self.statistics.step_seconds == 0
        self.statistics.add(costs)
        if follows_untimed:
            self.statistics.double_seconds()
        return counts

    def close_iteration(self, bits: Width, period: int) -> None:
        """Count what an iteration has cost, or a round of ``period``, at a width of ``bits``."""
        self.statistics.add(self.open_costs)
        self.totals.add(self.open_costs)
        self.open_costs.clear()  # what is not settled yet will be added to it
        self.totals.iterations += period
        self.totals.bit_iterations += period * bits

    def take(self, reported: int) -> RankStatistics:
        """Return the statistics of the interval, of which so many losses were reported, and begin another."""
        taken, self.statistics = self.statistics, RankStatistics()
        losses = self.losses[:reported]
        del self.losses[:reported]  # not a new list: the training thread may be adding to this one
        taken.losses = [float(loss) for loss in losses]
        return taken

    def state_dict(self) -> dict[str, Any]:
        """State as plain types."""
        return {
            "statistics": dataclasses.asdict(self.statistics),
            "open_costs": dataclasses.asdict(self.open_costs),
            "losses": [float(loss) for loss in self.losses],
            "round": [(float(loss), costs and dataclasses.asdict(costs)) for loss, costs in self._round],
            "totals": dataclasses.asdict(self.totals),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, which ``state`` may hold among other things."""
        self.statistics = restored(RankStatistics, state["statistics"])
        self.open_costs = restored(Costs, state["open_costs"])
        self.losses = list(state["losses"])
        self._round = [(loss, costs and restored(Costs, costs)) for loss, costs in state["round"]]
        self.totals = restored(Totals, state["totals"])


def check_loss(loss: torch.Tensor | float, rank: int) -> None:
    """Raise ``ValueError``, naming the rank, for a loss that is not one number; of a tensor, without waiting for its
    value."""
    if isinstance(loss, torch.Tensor):
        if loss.numel() != 1 or loss.is_complex():
            raise ValueError(
                f"step() of rank {rank} was given a loss of shape {tuple(loss.shape)}, {loss.dtype}: give its mean, "
                "one number"
            )
        return
    try:
        float(loss)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"step() of rank {rank} was given {loss!r} as its loss ({error}): give one number"
        ) from None


def _own(loss: torch.Tensor | float) -> torch.Tensor | float:
    """A copy, as scripts reuse the tensor that they add losses up in; in fp32 at least, as those of a round are added
    up here.

    On the CPU it is a number, as nothing has to be waited for there, and tensors that are kept may come to lie in the
    gaps that activations leave. (Simulated ranks that kept theirs grew by 0.5 GiB in 300 iterations.)
    """
    if not isinstance(loss, torch.Tensor):
        return float(loss)
    if loss.device.type == "cpu":
        return float(loss.detach())
    return loss.detach().to(torch.promote_types(loss.dtype, torch.float32), copy=True)


def _combined(
    iterations: list[tuple[torch.Tensor | float, Costs | None]],
) -> tuple[torch.Tensor | float, Costs | None]:
    """Mean loss and all seconds of a round; None if those of an iteration are not known."""
    if len(iterations) == 1:
        return iterations[0]
    losses, costs = zip(*iterations, strict=True)
    total = Costs()
    for part in costs:
        if part is None:
            return sum(losses) / len(losses), None
        total.add(part)
    return sum(losses) / len(losses), total
