"""Adam at few bits: its second moment follows gradients that are sent at more bits now and then, and else is frozen.

Adam divides its steps by the root of the second moment, an average of squared gradients, to which the noise of a code
adds: with few bits its steps become too short, and what error feedback repays later does not undo that. 1-bit Adam
(Tang et al., ICML 2021) therefore freezes the second moment after a warm-up in full precision, and 0/1 Adam (Lu et
al., ICLR 2023) refreshes it ever less often. Here, with :class:`FrozenSecondMoment`,

1. iteration i is a *refreshing* one if i is divisible by min(every, 2^(1 + ⌊log2(i/opening)⌋)): all of the first
   `opening`, 64, every second of as many more, then every fourth and so on, as the gradient's size changes most at
   first. It is sent at `bits` at least.
2. After each other step, which is PyTorch's own, the second moment is what it was before, but for the correction of
   its bias. Where that begins, elements below `floor` times the mean of their parameter are raised to that: their
   steps would be as many times larger than Adam's as the code's noise is than their gradients.
3. After a refreshing step, a parameter's n-th since the last one, its squared gradient has the weight that n of them
   would have had together, 1 − β2ⁿ in place of 1 − β2. So if all iterations refresh, as where a controller chooses
   that many bits by itself, this is Adam as it was. A parameter's first step refreshes in any case.

The optimizer's state remains Adam's at any time, beside an n: it can be saved, loaded and stepped without this.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..checks import check_count, check_not_negative
from ..tensors import raise_small_
from ..widths import CODED_WIDTHS, Width, Widths, check_width

_REFRESHING_WIDTHS = CODED_WIDTHS[1:]
"""One bit is what there is to shield from, and at 16 and 32 error feedback repays all that it owes at once."""
_STEPS_FROZEN = "mqgrad_steps_frozen"
"""In the optimizer's state of a parameter that is frozen: its steps since one that refreshed, saved with it."""
_OWNED: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()
"""Whose second moments are being frozen."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FrozenSecondMoment:
    """When Adam's second moment follows the gradient; for :class:`mqgrad.CompressionState`.

    For a controller that stays at few bits: where one goes to 16 or 32, as a fallback does, the first gradient there
    brings along all that is owed, and the second moment takes it for larger than it is.

    Raises:
        ValueError: no whole number of iterations, a width other than 2 to 8, a negative floor.
    """

    every: int = 16
    """Iterations from one refreshing iteration to the next, once a run has had every / 2 times the opening."""
    opening: int = 64
    """Iterations at the beginning of a run that all refresh. With 16 one training of five went wrong while learning
    rates rose (docs/results.md, "A whole training")."""
    bits: Width = 4
    """Width of a refreshing iteration, unless it has more anyway."""
    floor: float = 1e-3
    """Least element of a frozen second moment, relative to the mean of its parameter."""

    def __post_init__(self) -> None:
        check_count(every=self.every, opening=self.opening)
        object.__setattr__(self, "bits", check_width(self.bits, _REFRESHING_WIDTHS))
        check_not_negative(floor=self.floor)

    @property
    def text(self) -> str:
        """What all ranks must have alike, and saved states are told by."""
        when = f"every {int(self.every)} after {int(self.opening)}"
        return f"second_moment={when} at {self.bits} above {float(self.floor)}"

    def in_force(self, bits: Widths, iteration: int) -> Widths:
        """Widths at which an iteration is sent, where others were decided on; iterations count from 0."""
        if not self._is_due(iteration):
            return bits
        if not isinstance(bits, tuple):
            return max(bits, self.bits)
        raised = tuple(max(own, self.bits) for own in bits)
        return raised[0] if len(set(raised)) == 1 else raised

    def _is_due(self, iteration: int) -> bool:
        spacing = 1 << (iteration // self.opening).bit_length()
        return iteration % min(self.every, spacing) == 0

    def is_refreshed_at(self, bits: Widths) -> bool:
        """Whether gradients of these widths refresh the second moment."""
        return min(bits if isinstance(bits, tuple) else (bits,)) >= self.bits


def check_second_moment(
    settings: object,
    optimizer: object,
    *,
    widths: tuple[Width, ...],
    parameter_widths: tuple[Width, ...],
    in_rounds: bool,
) -> torch.optim.Optimizer | None:
    """The script's optimizer, if its second moment is to be frozen, which it has to have.

    Args:
        widths, parameter_widths: of the compressor.

    Raises:
        TypeError: settings of another kind.
        ValueError: no Adam; ``amsgrad``; one whose second moment is another state's to freeze; rounds, where each
            rank's is its own; a compressor that lacks the width.
    """
    if settings is None:
        return None
    if not isinstance(settings, FrozenSecondMoment):
        raise TypeError(f"second_moment {settings!r} must be a mqgrad.FrozenSecondMoment")
    if in_rounds:
        raise ValueError(
            "second_moment: in rounds every rank's Adam has its own gradients in fp32 and loses nothing: leave it out"
        )
    if settings.bits not in widths or (parameter_widths and settings.bits not in parameter_widths):
        raise ValueError(
            f"second_moment: the compressor has no width of {settings.bits} bits to refresh it at"
        )
    return _checked_adam(optimizer)


def _checked_adam(optimizer: object) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        raise ValueError(
            f"second_moment needs a torch.optim.Adam or AdamW as optimizer=, not {type(optimizer).__name__}, whose "
            "state is not known here"
        )
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        raise ValueError(
            "second_moment: with amsgrad=True Adam's steps follow the largest second moment so far, which is not "
            "frozen: leave out one of them"
        )
    if optimizer in _OWNED:
        raise ValueError(
            "second_moment: another CompressionState freezes that of this optimizer: close() that one first"
        )
    return optimizer


class _Before(NamedTuple):
    """A parameter's second moment before a step."""

    moment: torch.Tensor
    """A copy."""
    steps: float
    """How many it is of."""


class SecondMoments:
    """Freezes and refreshes those of one rank's optimizer, by hooks around its steps.

    Args:
        settings: when to refresh is not decided here.
        optimizer: an Adam.
        is_refreshed: whether the gradient of the step was sent at enough bits; what it raises, ``optimizer.step()``
            raises.
    """

    def __init__(
        self, settings: FrozenSecondMoment, optimizer: torch.optim.Optimizer, is_refreshed: Callable[[], bool]
    ) -> None:
        self._floor, self._optimizer, self._is_refreshed = settings.floor, optimizer, is_refreshed
        self._refreshes = True
        """Of the step under way."""
        self._before: dict[torch.Tensor, _Before] = {}
        """Of the step under way, but for parameters that it moves as Adam does."""
        self._hooks = (
            optimizer.register_step_pre_hook(self._on_step),
            optimizer.register_step_post_hook(self._on_stepped),
        )
        _OWNED.add(optimizer)

    def _on_step(self, *arguments: object) -> None:
        self._refreshes = self._is_refreshed()
        self._before = {}
        for parameter, _, state in self._states():
            moment, was_frozen = state["exp_avg_sq"], _STEPS_FROZEN in state
            if self._refreshes and not was_frozen:
                continue
            if not was_frozen:
                raise_small_(moment, self._floor)
            self._before[parameter] = _Before(moment.clone(), float(state["step"]))

    def _on_stepped(self, *arguments: object) -> None:
        for parameter, beta, state in self._states():
            before, steps = self._before.get(parameter), float(state["step"])
            # Its first step stays as PyTorch made it; without a gradient, or with infinite ones, there may be none.
            if before is None or not 0 < before.steps < steps:
                continue
            times = state.pop(_STEPS_FROZEN, 0) + 1
            _put_back(state["exp_avg_sq"], before, steps, beta, times if self._refreshes else 0)
            if not self._refreshes:
                state[_STEPS_FROZEN] = times
        self._before = {}

    def _states(self) -> Iterator[tuple[torch.Tensor, float, dict[str, Any]]]:
        """Of each parameter that has had a step: itself, its β2, the optimizer's state."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if state := self._optimizer.state.get(parameter):
                    yield parameter, float(group["betas"][1]), state

    def close(self) -> None:
        """Leave the optimizer alone: its second moments follow all gradients from here on."""
        for hook in self._hooks:
            hook.remove()
        for _, _, state in self._states():
            state.pop(_STEPS_FROZEN, None)
        _OWNED.discard(self._optimizer)


def _put_back(moment: torch.Tensor, before: _Before, steps: float, beta: float, times: int) -> None:
    """Make a second moment after a step what it is if the squared gradient has come so many ``times``; 0: not at all.

    Divided by w = 1 − β2ᵗ, v of t steps has no bias. Of v PyTorch has made β2·v + (1 − β2)·g²; wanted is (w' − (1 −
    β2ⁿ))/w·v + (1 − β2ⁿ)·g², with w' after the step.
    """
    together = 1 - beta**times
    kept = (1 - beta**steps - together) / (1 - beta**before.steps)
    if times == 0:
        torch.mul(before.moment, kept, out=moment)
        return
    moment.sub_(before.moment, alpha=beta).clamp_(min=0)  # (1 − β2)·g²
    moment.mul_(together / (1 - beta)).add_(before.moment, alpha=kept)
