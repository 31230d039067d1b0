"""Adam at few bits: its second moment follows gradients that are sent at more bits now and then, and else is frozen.

Adam divides its steps by the root of the second moment, an average of squared gradients, to which the noise of a code
adds: with few bits its steps become too short, and what error feedback repays later does not undo that. 1-bit Adam
(Tang et al., ICML 2021) therefore freezes the second moment after a warm-up in full precision, and 0/1 Adam (Lu et
al., ICLR 2023) refreshes it ever less often. Here, with :class:`FrozenSecondMoment`,

1. iteration i is a *refreshing* one if i is divisible by min(every, 2^⌊log2(i/8)⌋): all of the first 16, then every
   second, fourth and so on, as the gradient's size changes most at first. It is sent at `bits` at least.
2. In a refreshing iteration, the n-th since the one before, the average forgets as much as it would have in n of
   them: step t moves it by (1 − β2ⁿ)/(1 − β2ᵗ) of the way to the squared gradient, as Adam without bias does with n =
   1. So if all are, as where a controller chooses that many bits by itself, this is Adam as it was.
3. In the others the second moment stays. Before the first of them, elements below `floor` times the mean of their
   parameter are raised to that: their steps would be as many times larger than Adam's as the code's noise is than
   their gradients.

The frozen moments are kept without a copy: the bias of both is corrected once, the optimizer's step count, which
PyTorch corrects by, becomes infinite, and β2 is the largest float32 below 1 for the length of a step.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from ..checks import check_count, check_not_negative
from ..widths import UNCODED, Width, Widths, check_width

_FIRST = 4
"""Bits of the iteration number at which every second iteration refreshes no more: all of the first 16 do."""
_KEPT = 1 - 2.0**-24
"""β2 with which a second moment stays, to 10⁻⁶ in 16 steps: some kernels have β2 in fp32, where nothing else is next
to 1."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FrozenSecondMoment:
    """When Adam's second moment follows the gradient; for :class:`mqgrad.CompressionState`.

    Raises:
        ValueError: no whole number of iterations, an unknown width or one below 2 bits, a negative floor.
    """

    every: int = 16
    """Iterations from one refreshing iteration to the next, once a run has had eight times as many."""
    bits: Width = 4
    """Width of a refreshing iteration, unless it has more anyway."""
    floor: float = 1e-3
    """Least element of a frozen second moment, relative to the mean of its parameter."""

    def __post_init__(self) -> None:
        check_count(every=self.every)
        check_width(self.bits)
        if self.bits < 2:
            raise ValueError(f"bits of a refreshing iteration must be at least 2, not {self.bits!r}")
        check_not_negative(floor=self.floor)

    @property
    def text(self) -> str:
        """What all ranks must have alike, and saved states are told by."""
        return f"second_moment=every {self.every} at {self.bits} above {self.floor}"

    def in_force(self, bits: Widths, iteration: int) -> Widths:
        """Widths at which an iteration is sent, where others were decided on; iterations count from 0."""
        if not self._is_due(iteration):
            return bits
        return tuple(max(own, self.bits) for own in bits) if isinstance(bits, tuple) else max(bits, self.bits)

    def _is_due(self, iteration: int) -> bool:
        spacing = 1 << max(0, iteration.bit_length() - _FIRST)
        return iteration % min(self.every, spacing) == 0

    def is_refreshed_at(self, bits: Widths) -> bool:
        """Whether gradients of these widths refresh the second moment."""
        return min(bits if isinstance(bits, tuple) else (bits,)) >= self.bits


def check_second_moment(
    settings: object, optimizer: object, *, widths: tuple[Width, ...], in_rounds: bool
) -> torch.optim.Optimizer | None:
    """The script's optimizer, if its second moment is to be frozen, which it has to have.

    Raises:
        TypeError: settings of another kind.
        ValueError: no Adam; ``amsgrad``; rounds, where each rank's is its own; a compressor that lacks the width.
    """
    if settings is None:
        return None
    if not isinstance(settings, FrozenSecondMoment):
        raise TypeError(f"second_moment {settings!r} must be a mqgrad.FrozenSecondMoment")
    if in_rounds:
        raise ValueError(
            "second_moment: in rounds every rank's Adam has its own gradients in fp32 and loses nothing: leave it out"
        )
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
    if settings.bits not in widths and settings.bits != UNCODED:
        raise ValueError(
            f"second_moment: the compressor has no width of {settings.bits} bits to refresh it at"
        )
    return optimizer


class SecondMoments:
    """Freezes and refreshes those of one rank's optimizer, by hooks around its steps.

    Args:
        settings: when to refresh is not decided here, but how much is kept.
        optimizer: an Adam.
        is_refreshed: whether the gradient that the next step has was sent at enough bits; may raise, and the
            optimizer's ``step`` raises that.
    """

    def __init__(
        self, settings: FrozenSecondMoment, optimizer: torch.optim.Optimizer, is_refreshed: Callable[[], bool]
    ) -> None:
        self._floor, self._optimizer, self._is_refreshed = settings.floor, optimizer, is_refreshed
        self._steps = 0.0
        """In all; infinite of an optimizer that another has frozen before."""
        self._steps_frozen = 0
        """Since the last one that refreshed."""
        self._used = [float(group["betas"][1]) for group in optimizer.param_groups]
        """β2 of the last step, by group."""
        self._has_no_bias = False
        self._own: list[float] | None = None
        """The script's β2 by group, for the length of a step."""
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def _before(self, *_: object) -> None:
        self._give_back()  # a step before may have been interrupted
        if self._steps == 0:
            self._find_frozen()
        refreshes, was_frozen = self._is_refreshed(), self._steps_frozen > 0
        if refreshes == was_frozen:
            self._correct_bias()
        if not refreshes and not was_frozen:
            self._raise_to_floor()
        groups = self._optimizer.param_groups
        self._own = [group["betas"][1] for group in groups]
        self._steps += 1
        self._steps_frozen += 1
        self._used = [self._forgetting(float(beta)) if refreshes else _KEPT for beta in self._own]
        for group, beta in zip(groups, self._used, strict=True):
            group["betas"] = (group["betas"][0], beta)
        if refreshes:
            self._steps_frozen = 0

    def _forgetting(self, beta: float) -> float:
        """β2 of a step that refreshes."""
        if not self._has_no_bias:  # and there was no other
            return beta
        return 1 - (1 - beta**self._steps_frozen) / (1 - beta**self._steps)

    def _find_frozen(self) -> None:
        if any(math.isinf(state.get("step", 0)) for state in self._optimizer.state.values()):
            self._steps, self._has_no_bias = math.inf, True

    def _after(self, *_: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        """Schedulers, logs and checkpoints see the script's β2."""
        if self._own is not None:
            for group, beta in zip(self._optimizer.param_groups, self._own, strict=True):
                group["betas"] = (group["betas"][0], beta)
        self._own = None

    def _correct_bias(self) -> None:
        """Once for each parameter, when it is first frozen; or refreshed, where it took its first steps frozen."""
        self._has_no_bias = True
        for group, used in zip(self._optimizer.param_groups, self._used, strict=True):
            for state in map(self._optimizer.state.get, group["params"]):
                if state and math.isfinite(steps := float(state["step"])):
                    state["exp_avg"].div_(1 - float(group["betas"][0]) ** steps)
                    state["exp_avg_sq"].div_(1 - used**steps)
                    state["step"].fill_(math.inf)

    def _raise_to_floor(self) -> None:
        for state in self._optimizer.state.values():
            moment = state["exp_avg_sq"]
            moment.clamp_(min=self._floor * moment.mean())

    def close(self) -> None:
        """Leave the optimizer alone; its second moments follow all gradients from here on."""
        for hook in self._hooks:
            hook.remove()
        self._give_back()

    def state_dict(self) -> dict[str, Any]:
        """State as plain types; moments are in the optimizer's."""
        return {
            "steps": self._steps,
            "steps_frozen": self._steps_frozen,
            "used": list(self._used),
            "has_no_bias": self._has_no_bias,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._steps, self._steps_frozen = state["steps"], state["steps_frozen"]
        self._used, self._has_no_bias = list(state["used"]), state["has_no_bias"]
