"""1-bit Adam: momenta are coded, and divided by a second moment that is frozen after an uncoded warm-up."""

import dataclasses
import warnings
from collections.abc import Set
from typing import Any

import torch

from ..checks import check_count, check_decay, check_not_negative
from ..collectives.wire_meter import Pending
from ..layout import Layout
from ..stopwatch import add_seconds
from ..tensors import raise_small_
from ..widths import Width
from .base import BucketWork, CompressorDefaults, Step
from .onebit import OneBit
from .parameter_memory import ParameterMemory, without


@dataclasses.dataclass(kw_only=True)
class OneBitAdam(CompressorDefaults):
    """1-bit Adam (Tang et al., ICML 2021, algorithm 1), with the code of 1-bit SGD.

    Adam is taken here: what the optimizer gets is its direction, so let that be SGD without momentum, at Adam's
    learning rate. (Its weight decay is then AdamW's.) Do not clip that direction, nor scale the loss. With one rank
    nothing is averaged, and SGD gets the gradient. All parameters have to be there from the first iteration on.

    Raises:
        ValueError: for no whole number of iterations, a β outside 0..1 or a negative number elsewhere.
    """

    state_fields = ("momentum", "second_moment", "coder")
    warmup_iterations: int = 100
    """Uncoded, whatever width statistics tell; the paper's are 15 to 25 % of a run."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    floor: float = 1e-3
    """Least element of the frozen second moment, relative to the mean of its parameter; the paper has none."""
    momentum: ParameterMemory = dataclasses.field(init=False, repr=False, default_factory=ParameterMemory)
    """State: m."""
    second_moment: ParameterMemory = dataclasses.field(
        init=False, repr=False, default_factory=ParameterMemory
    )
    """State: v."""
    coder: OneBit = dataclasses.field(init=False, repr=False, default_factory=OneBit)
    """State: what this rank owes."""
    divisors: dict[Layout, torch.Tensor] = dataclasses.field(init=False, repr=False, default_factory=dict)
    """Of what is frozen, worked out once."""

    def __post_init__(self) -> None:
        check_count(1, warmup_iterations=self.warmup_iterations)
        check_decay(beta1=self.beta1)
        check_decay(beta2=self.beta2)
        check_not_negative(eps=self.eps, floor=self.floor)

    @property
    def widths(self) -> tuple[Width, ...]:
        """1, after the warm-up."""
        return (1,)

    @property
    def bucket_size(self) -> int:
        return self.coder.bucket_size

    @property
    def applies_momentum(self) -> bool:
        return True

    @property
    def num_residuals(self) -> int:
        # Not of what is owed: moments are there before, and must not take in a gradient twice either.
        return len(self.momentum)

    def average_(self, work: BucketWork, step: Step) -> None:
        """To the end; see :meth:`start_average_`."""
        self.start_average_(work, step).wait()

    def start_average_(self, work: BucketWork, step: Step) -> Pending[None]:
        """Begin to replace gradients by Adam's direction.

        1. In the warm-up average gradients g as they are; m ← β1·m + (1 − β1)·g, v ← β2·v + (1 − β2)·g².
        2. After it, every rank adds its own g to m like this; m ← the mean of those at 1 bit, with error feedback.
        3. The direction is m/(1 − β1ᵗ) over √(v/(1 − β2ᵗ)) + ε; in iteration t, which for v is the last one of the
           warm-up from then on.

        m and v change when the caller waits: other buckets have no part in them.

        Raises:
            ValueError: in rounds; a parameter that comes later than others.
        """
        self._check(work.layout, step)
        if self._is_warmup(step):
            averaged = self.coder.start_average_(work, step._replace(bits=32))
            return averaged.then(lambda _: self._warm_up(work, step))
        layout = work.layout
        with add_seconds(step.costs, "encode_seconds"):
            own = layout.pack(work.gradients).lerp_(self.momentum.flat(layout), self.beta1)
        parts = zip(layout.views(own), work.gradients, strict=True)
        momenta = BucketWork(own, [view.view_as(gradient) for view, gradient in parts], layout)
        averaged = self.coder.start_average_(momenta, step._replace(bits=1))
        return averaged.then(lambda _: self._take(work, own, step))

    def _is_warmup(self, step: Step) -> bool:
        return step.iteration < self.warmup_iterations

    def _check(self, layout: Layout, step: Step) -> None:
        rank = step.transport.global_rank
        if step.of_deltas:
            raise ValueError(f"rank {rank}: onebit-adam averages gradients: leave out period and period_rule")
        if late := [key for key in layout.keys if step.iteration > 0 and not self.momentum.has(key)]:
            raise ValueError(
                f"rank {rank}: parameter {late[0]} (of state.parameters) comes in iteration {step.iteration}, and "
                "onebit-adam has no second moment of it: have all take part in all of the run, or take "
                "FixedBits(1) with FrozenSecondMoment()"
            )

    def _warm_up(self, work: BucketWork, step: Step) -> None:
        with add_seconds(step.costs, "decode_seconds"):
            mean = work.layout.pack(work.gradients)
            first, second = self.momentum.flat(work.layout), self.second_moment.flat(work.layout)
            m = first.lerp(mean, 1 - self.beta1)
            v = (self.beta2 * second).addcmul_(mean, mean, value=1 - self.beta2)
            if self._hand_over(work, m, self._root(v, step), step) and bool(v.isfinite().all()):
                first.copy_(m)
                second.copy_(v)

    def _take(self, work: BucketWork, mean: torch.Tensor, step: Step) -> None:
        with add_seconds(step.costs, "decode_seconds"):
            if self._hand_over(work, mean, self._divisor(work.layout, step), step):
                self.momentum.flat(work.layout).copy_(mean)

    def _hand_over(self, work: BucketWork, m: torch.Tensor, divisor: torch.Tensor, step: Step) -> bool:
        """Make the gradients the direction; whether that is finite, in the gradients' type: else nothing is to be
        remembered of it."""
        work.layout.unpack(m / (1 - self.beta1 ** (step.iteration + 1)) / divisor, work.gradients)
        return bool(work.buffer.isfinite().all())

    def _root(self, second: torch.Tensor, step: Step) -> torch.Tensor:
        """√(v/(1 − β2ᵗ)) + ε."""
        steps = min(step.iteration + 1, self.warmup_iterations)
        return (second / (1 - self.beta2**steps)).sqrt_().add_(self.eps)

    def _divisor(self, layout: Layout, step: Step) -> torch.Tensor:
        """The root of what is frozen; infinite where that is 0, so that such elements stay as they are."""
        if layout not in self.divisors:
            frozen = self.second_moment.flat(layout).clone()
            for key, view in zip(layout.keys, layout.views(frozen), strict=True):
                raise_small_(view, self.floor)
                if view.numel() and not bool(view.any()):
                    _warn_of_none(key, step)
            root = self._root(frozen, step).masked_fill_(frozen == 0, torch.inf)
            self.divisors = {**without(self.divisors, layout), layout: root}
        return self.divisors[layout]

    def forget(self, keys: Set[int]) -> None:
        super().forget(keys)
        self.divisors.clear()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned on this rank."""
        super().load_state_dict(state)
        self.divisors.clear()


def _warn_of_none(key: int, step: Step) -> None:
    warnings.warn(
        f"rank {step.transport.global_rank}: parameter {key} (of state.parameters) had no gradient in the warm-up of "
        "onebit-adam, and stays as it is from now on: make warmup_iterations longer",
        RuntimeWarning,
        stacklevel=2,
    )
