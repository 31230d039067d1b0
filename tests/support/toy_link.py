"""A cluster whose right bit width is known: the log-loss falls by the goodput of the width, time is modelled."""

import math
from typing import Any

import numpy as np
from intervals import statistics

from mqgrad.codecs.quantization_noise import uniform_noise
from mqgrad.statistics.interval import IntervalStatistics

NUM_ELEMENTS = 1_000_000
COMPUTE_SECONDS = 0.2
SIGNAL = NOISE = 1.0
PEAK_ENERGY = 6.0  # so that quantization adds 6, 1, .11, .02, … times the signal at 1, 2, 3, 4, … bits


class ToyLink:
    """Log-loss falls per iteration by ``rate · S / (S + V/W + q(b)/W)``; every loss is seen with noise.

    Args:
        mbit_per_s: the link unless ``reset`` names another.
        rate: log-loss that an iteration without any noise would gain.
        decay: iterations after which the rate has halved (progress slows down, as in real training).
        loss_noise: standard deviation of an interval's mean log-loss.
        feedback: quantization hurts so many times less than the statistics say, as error feedback has it.
        peak_energy: how peaked the gradient is, which is what quantization noise is proportional to.
    """

    world_size = 2
    workload = None

    def __init__(
        self,
        mbit_per_s: float,
        *,
        rate: float = 0.02,
        decay: float = 100.0,
        loss_noise: float = 0.02,
        feedback: float = 1.0,
        peak_energy: float = PEAK_ENERGY,
    ) -> None:
        self.mbit_per_s = mbit_per_s
        self.rate, self.decay, self.loss_noise = rate, decay, loss_noise
        self.feedback = feedback
        self.peak_energy = peak_energy
        self.resets = 0
        self.closed = False
        self.reset(0)

    def reset(self, seed: int | None = None, *, link: Any = None, **_: Any) -> None:
        self.link_mbit_per_s = link.mbit_per_s if link is not None else self.mbit_per_s
        self.rng = np.random.default_rng(seed)
        self.resets += 1
        self.iteration = 0
        self.log_loss = math.log(2.3)

    def run(self, iterations: int, bits: int | None = None) -> IntervalStatistics:
        assert bits is not None
        noise = self.rng.normal(0.0, self.loss_noise)
        losses = []
        for _ in range(iterations):
            losses.append(math.exp(self.log_loss + noise))
            self.log_loss -= (
                self.rate
                * efficiency(bits, self.feedback, self.peak_energy)
                / (1 + self.iteration / self.decay)
            )
            self.iteration += 1
        wire = wire_seconds(bits, self.link_mbit_per_s)
        return statistics(
            iteration=self.iteration,
            bits=bits,
            losses=tuple(losses),
            step_seconds=COMPUTE_SECONDS + wire,
            compute_seconds=COMPUTE_SECONDS,
            encode_seconds=0.0,
            wire_seconds=wire,
            decode_seconds=0.0,
            wire_bytes=NUM_ELEMENTS * bits / 8,
            gradient_signal=SIGNAL * math.exp(self.rng.normal(0.0, 0.3)),
            gradient_noise=NOISE * math.exp(self.rng.normal(0.0, 0.3)),
            peak_energy=self.peak_energy,
        )

    def evaluate(self) -> dict[str, float]:
        return {"loss": math.exp(self.log_loss)}

    def close(self) -> None:
        self.closed = True


def wire_seconds(bits: int, mbit_per_s: float) -> float:
    return NUM_ELEMENTS * bits / (mbit_per_s * 1e6)


def efficiency(bits: int, feedback: float = 1.0, peak_energy: float = PEAK_ENERGY) -> float:
    """Progress of an iteration relative to one without any noise."""
    return SIGNAL / (SIGNAL + NOISE + uniform_noise(peak_energy, bits) / feedback)
