"""What one interval of training showed: the input of every controller and observation."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch

from mqgrad.cuda_ext import SKETCH_SIZE

from ..codecs.quantization_noise import Coding, code_noise
from ..costs import COSTS
from ..widths import Width
from .efficiency import UNPAID, log_efficiency
from .rank import SCALARS

LEAST_SECONDS = 0.25
"""Between two decisions of policies and of the goodput rule: to measure and decide takes some 5 ms, 2 % of that."""


class Trial(NamedTuple):
    """What a code would make of one parameter's gradient at a width: Q(g_r), without feedback. Means over ranks."""

    error_sq: float
    """‖Q(g_r) − g_r‖²."""
    norm_sq: float
    """‖Q(g_r)‖²."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ParameterStatistics:
    """The gradient of one parameter, over all ranks, at the last iteration of an interval."""

    numel: int
    norm_sq: float
    """‖g_r‖², mean over ranks."""
    peak_energy: float
    """Σ n_k · max|g_k|² over the parameter's scale buckets, divided by W."""
    trials: tuple[Trial, ...] = ()
    """At the controller's ``trial_widths``, in their order; empty where the compressor has no trials."""

    @classmethod
    def from_rows(cls, rows_WKN: torch.Tensor, period: int = 1) -> "tuple[ParameterStatistics, ...]":
        """Combine the ranks' ``RankStatistics.parameter_rows``, float64 [W, K, N], of a round of ``period``."""
        world_size = rows_WKN.shape[0]
        rows_WKN = torch.cat([rows_WKN[..., :1], rows_WKN[..., 1:] / period**2], dim=-1)
        return tuple(
            cls(
                numel=int(numel),
                norm_sq=norm_sq,
                peak_energy=peak_energy / world_size,
                trials=tuple(map(Trial, trials[::2], trials[1::2])),
            )
            for numel, norm_sq, peak_energy, *trials in rows_WKN.mean(dim=0).tolist()
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class IntervalStatistics:
    """An interval of iterations over all ranks. Seconds and bytes are means per iteration.

    Where ranks average at the end of rounds (``CompressionState(period=…)``), each iteration here is a round, and its
    gradient what the parameters have moved, divided by the period; only ``iteration`` counts single ones.
    """

    iteration: int
    """Iterations completed since the run began, at the end of this interval."""
    bits: Width
    """Bit width that the interval was run at; where parameters have their own, the mean over elements. The least one
    where some iterations are sent at more, as with a frozen second moment."""
    world_size: int
    losses: tuple[float, ...]
    """Training loss of each iteration, mean over ranks."""
    step_seconds: float
    """Wall-clock seconds of the slowest rank."""
    compute_seconds: float
    """Seconds not spent waiting for communication, mean over ranks."""
    encode_seconds: float
    wire_seconds: float
    decode_seconds: float
    wire_bytes: float
    """Bytes one rank hands to the transport, mean over ranks."""
    gradient_signal: float
    """S, an estimate of the true gradient's squared norm, from the inner products between ranks. Negative where their
    gradients cancel, by chance or because their data differ."""
    gradient_noise: float
    """V/W: the variance that the mean over W ranks has left (V is the variance between ranks)."""
    peak_energy: float
    """Σ n_k · max|g_k|² over scale buckets, divided by W; see :meth:`coding_noise`."""
    update_exponent: float = 1.0
    """How the optimizer's steps grow with gradients: 1 as SGD's, 0 not at all, as Adam's; mean over ranks. 1 where
    ranks average moves of parameters, or a second moment may be frozen. See :mod:`mqgrad.hook.update_probe`."""
    coding: Coding = dataclasses.field(default_factory=Coding)
    """Of the compressor."""
    fixed_wire_seconds: float = 0.0
    """The part of ``wire_seconds`` that does not depend on bytes: latency and overhead of the collectives."""
    decide_seconds: float = 0.0
    """Combining statistics and asking the controller."""
    waited_seconds: float = 0.0
    """Seconds for which the rank waited that did so the least: without waiting for ranks that are always slower."""
    period: int = 1
    """Iterations of a round; 1 where iterations here are single ones."""
    bit_iterations: float | None = None
    """Sum of ``bits`` over the iterations, where a controller may have changed it among them."""
    figures: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    """What the compressor reports of itself, mean over ranks (``Compressor.figures``); controllers do not get it."""
    parameters: tuple[ParameterStatistics, ...] = ()
    """In the order of the layout's keys, for a controller with ``wants_parameters``; else empty."""

    @property
    def mean_bits(self) -> float:
        """Mean width over the iterations."""
        if self.bit_iterations is None or not self.losses:
            return self.bits
        return self.bit_iterations / len(self.losses)

    @property
    def mean_norm_sq(self) -> float:
        """‖ḡ‖² of the mean gradient, which is S + V/W."""
        return self.gradient_signal + self.gradient_noise

    @property
    def rank_norm_sq(self) -> float:
        """‖g_r‖², mean over ranks, which is S + V."""
        return self.gradient_signal + self.world_size * self.gradient_noise

    @property
    def loss(self) -> float:
        """Mean loss of the interval."""
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the whole interval."""
        return self.step_seconds * len(self.losses)

    def with_gradient_of(self, other: "IntervalStatistics") -> "IntervalStatistics":
        """The same interval with another one's figures of the gradient."""
        return dataclasses.replace(
            self,
            gradient_signal=other.gradient_signal,
            gradient_noise=other.gradient_noise,
            peak_energy=other.peak_energy,
            update_exponent=other.update_exponent,
        )

    def coding_noise(self, bits: Width) -> float:
        """Expected squared error that coding the ranks' gradients at ``bits`` adds to their mean.

        See :func:`mqgrad.codecs.quantization_noise.code_noise`.
        """
        return code_noise(bits, self._norm_sq_in_mean, self.peak_energy, rotated=self.coding.rotated)

    def noise_of_mean(self, bits: Width) -> float:
        """:meth:`coding_noise` and, where the mean is coded once more, what that adds.

        That is taken to be as large relative to ‖ḡ‖² as the ranks' is to their gradients; it is not divided by W.
        """
        noise, norm_sq = self.coding_noise(bits), self._norm_sq_in_mean
        return noise * (1 + self.mean_norm_sq / norm_sq) if self.coding.recoded and norm_sq > 0 else noise

    def efficiency(self, bits: Width) -> float:
        """Progress to expect of an iteration at ``bits``, relative to 32 bits (:mod:`mqgrad.statistics.efficiency`).

        1 where there is no noise; 0 where a mean gradient of zero has some.
        """
        noise, norm_sq = self.noise_of_mean(bits), self.mean_norm_sq
        if noise <= 0:
            return 1.0
        if norm_sq <= 0:
            return 0.0
        unpaid = UNPAID if self.coding.feedback else 1.0
        values = map(np.array, (noise / norm_sq, self.update_exponent, unpaid))
        return float(np.exp(log_efficiency(*values)))

    @property
    def _norm_sq_in_mean(self) -> float:
        """What the ranks' gradients would leave in their mean if they had nothing in common."""
        return self.rank_norm_sq / self.world_size

    @classmethod
    def from_rows(
        cls,
        rows: torch.Tensor,
        *,
        iteration: int,
        bits: Width,
        coding: Coding = Coding(),  # noqa: B008 - frozen
        bit_iterations: float | None = None,
        period: int = 1,
        last_period: int | None = None,
    ) -> "IntervalStatistics":
        """Combine the ranks' rows.

        Args:
            rows: float64 [W, K], row r from ``RankStatistics.to_row`` on rank r.
            iteration: iterations completed at the end of the interval.
            bits: width of the interval.
            coding: of the compressor.
            bit_iterations: sum of the width over its iterations, where the width may have changed among them.
            period: iterations of a round.
            last_period: of the last one, which may have been finished early; None: as many.
        """
        world_size = rows.shape[0]
        scalars, losses_WI, sketches_WS = rows.tensor_split(
            [len(SCALARS), rows.shape[1] - SKETCH_SIZE], dim=1
        )
        names = ("step_seconds", "compute_seconds")
        step_seconds, compute_seconds = (scalars[:, SCALARS.index(name)] for name in names)
        means = dict(zip(SCALARS, scalars.mean(dim=0).tolist(), strict=True))
        losses = losses_WI.mean(dim=0).tolist()
        steps = max(len(losses), 1)
        costs = {name: means[name] / steps for name in COSTS}
        costs["step_seconds"] = float(step_seconds.max()) / steps
        signal = _signal(sketches_WS, means["local_norm_sq"])
        # Of squares, so that they can be compared with those of rounds of another length.
        scale = (last_period or period) ** 2
        return cls(
            iteration=iteration,
            bits=bits,
            world_size=world_size,
            coding=coding,
            losses=tuple(losses),
            **costs,
            waited_seconds=float((step_seconds - compute_seconds).min()) / steps,
            gradient_signal=signal / scale,
            gradient_noise=(means["local_norm_sq"] - signal) / world_size / scale if world_size > 1 else 0.0,
            peak_energy=means["peak_energy"] / world_size / scale,
            update_exponent=means["update_exponent"],
            bit_iterations=bit_iterations,
            period=period,
        )


def _signal(sketches_WS: torch.Tensor, local_norm_sq: float) -> float:
    """S = mean of ⟨g_r, g_q⟩ over r ≠ q: what independent gradients have in common.

    At most mean ‖g_r‖², and never so negative that ‖ḡ‖² would be, which sketches may suggest.
    """
    world_size = sketches_WS.shape[0]
    if world_size == 1:
        return local_norm_sq
    products = sketches_WS @ sketches_WS.T
    common = float(products.sum() - products.trace()) / (world_size * (world_size - 1))
    lowest = -(1 - 1e-9) * local_norm_sq / (world_size - 1)  # where rounding leaves ‖ḡ‖² above 0
    return min(max(common, lowest), local_norm_sq)
