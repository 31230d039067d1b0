"""1-bit Adam: momenta are coded, and divided by a second moment that is frozen after a warm-up in full precision."""

import dataclasses
from typing import ClassVar

import torch

from ..checks import check_count, check_keep, check_not_negative
from ..collectives.wire_meter import Pending
from ..stopwatch import add_seconds
from ..widths import Width
from .base import BucketWork, CompressorDefaults, Step
from .feedback import ErrorFeedback
from .quantized import Quantized


@dataclasses.dataclass(kw_only=True)
class OneBitAdam(CompressorDefaults):
    """1-bit Adam (Tang et al., ICML 2021, algorithm 1), on our code.

    Adam is taken here: what the optimizer gets is its direction, so let that be SGD without momentum, at Adam's
    learning rate. (Its weight decay is then AdamW's.) With one rank nothing is averaged, and SGD gets the gradient.

    Raises:
        ValueError: for no whole number of iterations, a β outside 0..1 or a negative number elsewhere.
    """

    parts: ClassVar[tuple[str, ...]] = ("momentum", "second_moment", "coder")
    warmup_iterations: int = 100
    """In fp32; the paper's are 15 to 25 % of a run."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    floor: float = 1e-3
    """Least element of the frozen second moment, relative to the mean of its parameter; the paper has none."""
    feedback_gain: float = 1.0
    """α of the error feedback; below 1 it is slow."""
    momentum: ErrorFeedback = dataclasses.field(init=False, repr=False, default_factory=ErrorFeedback)
    """State: m, alike on all ranks."""
    second_moment: ErrorFeedback = dataclasses.field(init=False, repr=False, default_factory=ErrorFeedback)
    """State: v, alike on all ranks."""
    coder: Quantized = dataclasses.field(init=False, repr=False)
    """State: what this rank owes."""

    def __post_init__(self) -> None:
        check_count(1, warmup_iterations=self.warmup_iterations)
        check_keep(beta1=self.beta1)
        check_keep(beta2=self.beta2)
        check_not_negative(eps=self.eps, floor=self.floor)
        self.coder = Quantized(feedback_gain=self.feedback_gain)

    @property
    def widths(self) -> tuple[Width, ...]:
        """1, after the warm-up."""
        return (1,)

    @property
    def bucket_size(self) -> int:
        return self.coder.bucket_size

    @property
    def num_residuals(self) -> int:
        return self.coder.num_residuals

    def average_(self, work: BucketWork, step: Step) -> None:
        """To the end; see :meth:`start_average_`."""
        self.start_average_(work, step).wait()

    def start_average_(self, work: BucketWork, step: Step) -> Pending[None]:
        """Begin to replace gradients by Adam's direction.

        1. In the warm-up average gradients g at 32 bits; then m ← β1·m + (1 − β1)·g and v ← β2·v + (1 − β2)·g².
        2. After it, each rank adds its own g to m like this, and m ← the mean of those, at 1 bit with error feedback
           on both ways. v stays, but for its small elements.
        3. The direction is m/(1 − β1ᵗ) over √(v/(1 − β2ˢ)) + ε, s being the steps of v; 0 where v is.
        """
        layout, bits = work.layout, 32 if self._is_warmup(step) else 1
        with add_seconds(step.costs, "encode_seconds"):
            vector = layout.pack(work.gradients)
            if bits == 1:
                vector.lerp_(self.momentum.flat(layout), self.beta1)
        parts = zip(layout.views(vector), work.gradients, strict=True)
        own = BucketWork(vector, [view.view_as(gradient) for view, gradient in parts], layout)
        averaged = self.coder.start_average_(own, step._replace(bits=bits))
        return averaged.then(lambda _: self._finish(work, vector, step))

    def _is_warmup(self, step: Step) -> bool:
        return step.iteration < self.warmup_iterations

    def _finish(self, work: BucketWork, mean: torch.Tensor, step: Step) -> None:
        with add_seconds(step.costs, "decode_seconds"):
            is_finite = bool(mean.isfinite().all())  # else the next iteration is to begin where this one did
            work.layout.unpack(self._direction(work, mean, step) if is_finite else mean, work.gradients)

    def _direction(self, work: BucketWork, mean: torch.Tensor, step: Step) -> torch.Tensor:
        m, v = self.momentum.flat(work.layout), self.second_moment.flat(work.layout)
        if self._is_warmup(step):
            m.lerp_(mean, 1 - self.beta1)
            v.lerp_(mean.square(), 1 - self.beta2)
        else:
            m.copy_(mean)
        if step.iteration == self.warmup_iterations:
            for moment in work.layout.views(v):
                moment.clamp_(min=self.floor * moment.mean())
        steps = step.iteration + 1
        unbiased = v / (1 - self.beta2 ** min(steps, self.warmup_iterations))
        direction = m / (1 - self.beta1**steps) / (unbiased.sqrt() + self.eps)
        return torch.where(v > 0, direction, 0.0)
