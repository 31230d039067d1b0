"""Smoothness-aware quantization: DCGD+ and DIANA+, for problems whose smoothness matrices are known."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ..codecs.smoothness import SmoothQuantizer, StepRule, check_settings
from ..saved_state import check_keys
from ..seeding import stream_seed
from ..stopwatch import add_seconds
from .base import BucketWork, CompressorDefaults, Step


@dataclasses.dataclass(kw_only=True)
class Smoothness(CompressorDefaults):
    """DIANA+ and DCGD+ (Wang, Safaryan and Richtárik 2021) for a model of one parameter, such as ``logreg``.

    Rank i sends Δ_i = C_i(L_i^{+1/2}(∇f_i − h_i)); all compute the mean of h_i + L_i^{1/2}Δ_i. DIANA+ learns the
    shifts, h_i ← h_i + L_i^{1/2}Δ_i/(1 + ω), ω the largest of the ranks; DCGD+ leaves them at 0.
    :meth:`use_smoothness` must be called first, on every rank.
    The matrices, d² floats a rank once a run, are not sent and not counted. Every rank decomposes all of them and
    decodes in float64 by itself: replicas stay equal to the last bit where ranks have equal processors and as many
    threads.

    Raises:
        ValueError: for a wrong setting.
    """

    budget: float = 32.0
    """β: non-zero codes an iteration, at most in expectation."""
    steps: StepRule = "varying"
    """One step a coordinate, or ``uniform``: one step a block."""
    blocks: int = 1
    """Parts of the gradient with a norm of their own."""
    shift: bool = True
    """DIANA+, which converges to the optimum; false is DCGD+, which stays within a neighbourhood of it."""
    quantizers: list[SmoothQuantizer] = dataclasses.field(init=False, repr=False, default_factory=list)
    """By rank."""
    shifts: torch.Tensor = dataclasses.field(
        init=False, repr=False, default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64)
    )
    """State: h_i, float64 [W, d], the same on every rank."""

    def __post_init__(self) -> None:
        check_settings(self.budget, self.steps, self.blocks)

    def use_smoothness(self, matrices: Sequence[torch.Tensor]) -> None:
        """Take the smoothness matrix [d, d] of every rank, in order; the coordinates are the parameter's elements."""
        self.quantizers = [SmoothQuantizer(m, self.budget, self.steps, self.blocks) for m in matrices]
        self.shifts = torch.zeros(len(matrices), len(matrices[0]), dtype=torch.float64)

    def average_(self, work: BucketWork, step: Step) -> None:
        """Average one gradient.

        1. Encode what the own shift leaves of it, in the coordinates of the own matrix.
        2. All-gather the payloads, as long as the longest.
        3. Decode each with its rank's matrix; the mean of shifts and these is the gradient.
        4. Move the shifts, unless the step overflowed.
        """
        gradient, transport = self._only_gradient(work, step), step.transport
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            seed = stream_seed(step.seed, step.iteration, transport.rank)
            difference = gradient.reshape(-1).cpu().double() - self.shifts[transport.rank]
            payload = self.quantizers[transport.rank].encode(difference, torch.Generator().manual_seed(seed))
            longest = max(quantizer.payload_bytes for quantizer in self.quantizers)
            payload = torch.nn.functional.pad(payload, (0, longest - len(payload))).to(transport.device)
        # 2.
        payloads_WP = transport.all_gather(payload).cpu()
        # 3.
        with add_seconds(step.costs, "decode_seconds"):
            pairs = zip(self.quantizers, payloads_WP, strict=True)
            sent = torch.stack([quantizer.decode(received) for quantizer, received in pairs])
            mean = (self.shifts + sent).mean(0)
            gradient.copy_(mean.view_as(gradient))
        # 4.
        if self.shift and bool(mean.isfinite().all()):
            self.shifts += sent / (1 + max(quantizer.omega for quantizer in self.quantizers))

    def _only_gradient(self, work: BucketWork, step: Step) -> torch.Tensor:
        if not self.quantizers:
            raise ValueError(
                "compressor 'smoothness' needs the smoothness matrices of the problem: train logreg, which has them, "
                "or call use_smoothness(matrices) on every rank before the first iteration"
            )
        d, ranks = self.shifts.shape[1], len(self.quantizers)
        numels = [gradient.numel() for gradient in work.gradients]
        if numels != [d] or ranks != step.transport.world_size:
            raise ValueError(
                f"rank {step.transport.global_rank}: smoothness matrices of {ranks} ranks and {d} coordinates do "
                f"not fit a bucket of {numels} elements on {step.transport.world_size} ranks"
            )
        return work.gradients[0]

    @property
    def num_residuals(self) -> int:
        return int(self.shifts.any())  # which remember what they have averaged

    def state_dict(self) -> dict[str, Any]:
        return {"shifts": self.shifts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_keys(state, ["shifts"], repr(self))
        self.shifts = state["shifts"].clone()
