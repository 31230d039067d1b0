"""What a round of local iterations does to a parameter, and what is remembered of it for that."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..tensors import evenly_spaced
from .layout_table import LayoutTable


class RoundMemory:
    """z, u and m of one rank, by parameter. With z the parameters that all ranks have when a round begins:

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

    z is taken in the first backward, after a forward that may have changed what its batch looked up, on each rank
    something else: where the first round ends, rank 0's z becomes that of all.

    Where the period changes, u is scaled to what a round of the new one moves. A round that is finished after k of τ
    iterations counts as k/τ of one: z ← z − (k/τ)·β·u − mean d, and u and m go that part of their way.

    Args:
        momentum: β.
        layouts: knows the parameters.
        variance_reduced: whether there is m; it costs another copy of the model.
    """

    def __init__(self, momentum: float, layouts: LayoutTable, *, variance_reduced: bool) -> None:
        self._momentum = momentum
        self._layouts = layouts
        self._is_variance_reduced = variance_reduced
        self._anchors: dict[int, torch.Tensor] = {}
        """z, in fp32 at least."""
        self._unshared: set[int] = set()
        """Parameters whose anchors are this rank's own as yet."""
        self._velocities: dict[int, torch.Tensor] = {}
        """u; empty without momentum."""
        self._last_period = 0
        """Iterations of a round that u is of."""
        self._corrections: dict[int, torch.Tensor] = {}
        """m; empty without variance reduction, and in the first round."""

    @property
    def keys(self) -> Iterable[int]:
        """Parameters that have an anchor."""
        return self._anchors.keys()

    def knows(self, key: int) -> bool:
        """Whether a parameter has an anchor."""
        return key in self._anchors

    def begin(self, key: int) -> None:
        """Take a parameter's anchor, where the run begins."""
        self._anchors[key] = self._value(key).clone()
        self._unshared.add(key)

    def share(self, make_equal: Callable[[Sequence[torch.Tensor]], None]) -> None:
        """Have all ranks go by the same anchors, of those that have been taken since this was last called.

        Args:
            make_equal: overwrites tensors by rank 0's, on all ranks.
        """
        if self._unshared:
            make_equal([self._anchors[key] for key in sorted(self._unshared)])
            self._unshared.clear()

    def follow_to_device(self, key: int) -> None:
        """Move what was loaded of a parameter to where that is."""
        device = self._layouts.parameters[key].device
        if self._anchors[key].device == device:
            return
        for tensors in (self._anchors, self._velocities, self._corrections):
            if key in tensors:
                tensors[key] = tensors[key].to(device)

    def correct_only(self, keys: set[int]) -> None:
        """Forget the corrections of others than these parameters: the round does not train them."""
        self._corrections = {key: m for key, m in self._corrections.items() if key in keys}

    @torch.no_grad()
    def correct_step(self) -> None:
        """x ← x − m, after a step."""
        for key, correction in self._corrections.items():
            self._layouts.parameters[key].sub_(correction)

    def has_moved(self, key: int) -> bool:
        """Whether a parameter is not where its anchor is."""
        return not torch.equal(self._stored(key).nan_to_num(), self._value(key).nan_to_num())

    def seems_moved(self, keys: Sequence[int]) -> int | None:
        """The first of the parameters of a bucket that :meth:`has_moved`, by a sample of the elements: to compare all
        takes up to 3 % of a round of eight. All are compared at once, as a GPU is waited for."""
        values = [evenly_spaced(self._layouts.parameters[key]) for key in keys]
        anchors = [evenly_spaced(self._anchors[key]).to(values[0].dtype) for key in keys]
        differ = torch.cat(anchors).nan_to_num() != torch.cat(values).nan_to_num()
        if not bool(differ.any()):
            return None
        parts = differ.split([len(value) for value in values])
        return next(key for key, part in zip(keys, parts, strict=True) if bool(part.any()))

    def move(self, key: int, iterations: int) -> torch.Tensor:
        """d, by this rank's own steps in so many iterations."""
        moved = self._stored(key) - self._value(key)
        if key in self._corrections:
            moved.sub_(self._corrections[key], alpha=iterations)
        return moved

    def _value(self, key: int) -> torch.Tensor:
        parameter = self._layouts.parameters[key].detach()
        return parameter.to(torch.promote_types(parameter.dtype, torch.float32))

    def _stored(self, key: int) -> torch.Tensor:
        """The anchor, as the parameter holds it: what 16 bits round off is no move."""
        anchor = self._anchors[key]
        return anchor.to(self._layouts.parameters[key].dtype).to(anchor.dtype)

    @torch.no_grad()
    def go_on(self, means: Mapping[int, torch.Tensor], *, iterations: int, period: int) -> None:
        """Move anchors by the mean d of a round that has had so many of its ``period`` iterations, and the parameters
        to them."""
        part = min(iterations / period, 1.0)
        for velocity in self._velocities.values():  # of frozen parameters, too
            velocity.mul_(period / (self._last_period or period))
        for key, mean in means.items():
            if self._is_variance_reduced:
                self._follow_drift(key, mean, iterations, part)
            step = self._slow_step(key, mean, part) if self._momentum else mean
            self._layouts.parameters[key].copy_(self._anchors[key].sub_(step))
        self._last_period = period

    def _follow_drift(self, key: int, mean: torch.Tensor, iterations: int, part: float) -> None:
        drift = (mean - self.move(key, iterations)).div_(iterations)
        self._corrections[key] = torch.lerp(self._corrections.get(key, torch.zeros_like(drift)), drift, part)

    def _slow_step(self, key: int, mean: torch.Tensor, part: float) -> torch.Tensor:
        velocity = self._velocities.setdefault(key, torch.zeros_like(mean))
        # Rounded twice on every processor: `add` with an alpha rounds once where there are fused operations, and
        # replicas on two kinds of hosts would part.
        step = velocity.mul(part * self._momentum).add_(mean)
        velocity.mul_(1 - part * (1 - self._momentum)).add_(mean)
        return step

    def state_dict(self) -> dict[str, Any]:
        """State as tensors and plain types."""
        return {
            "last_period": self._last_period,
            "anchors": _copies(self._anchors),
            "unshared": sorted(self._unshared),
            "velocities": _copies(self._velocities),
            "corrections": _copies(self._corrections),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, which ``state`` may hold among other things."""
        self._last_period, self._unshared = state["last_period"], set(state["unshared"])
        self._anchors, self._velocities = _copies(state["anchors"]), _copies(state["velocities"])
        self._corrections = _copies(state["corrections"])
        for key in self._anchors:
            if key < len(self._layouts.parameters):  # others follow when they come
                self.follow_to_device(key)


def _copies(tensors: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in tensors.items()}
