"""The error that a width is expected to add, from figures of the gradient alone."""

import dataclasses
import functools
import math

import torch

from mqgrad import cuda_ext

from ..widths import Width

ROTATED_GAMMA: dict[Width, float] = {1: math.pi / 2 - 1, 2: 0.1331, 3: 0.0358, 4: 0.0096}
"""γ = E‖Q(v) − v‖²/‖v‖² of the unbiased rotated code for a dense v, at the widths that can be rotated: D/(1 − D), D
the error of a Gaussian's best codebook (Max 1960): 1 − 2/π, 0.1175, 0.0345 and 0.0095 (EDEN, ICML 2022)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Coding:
    """How a compressor codes: what noise to expect, and what becomes of it."""

    rotated: tuple[Width, ...] = ()
    """Widths of rotated codes; the others from 1 to 8 bits have uniform levels."""
    recoded: bool = False
    """Whether the ranks' mean is coded once more, as in shards."""
    feedback: bool = False
    """Whether what a code leaves out is sent later."""
    relative_bytes: float = 1.0
    """What a rank sends at a width below 32 bits, relative to shards; where that changes, mean over the interval."""


def squared_norm(x: torch.Tensor) -> float:
    """‖x‖² of a float32 tensor, added up in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64).square())


def code_noise(bits: Width, norm_sq: float, peak_energy: float, *, rotated: tuple[Width, ...]) -> float:
    """Expected squared error of a code on a gradient with these figures: uniform levels, but sparse below one bit and
    rotated at the widths that are named.

    A sparse code below one bit is biased, and feedback sends later what it leaves out: it counts as the unbiased code
    that contracts as much. Uniform levels with nearest rounding count as the stochastic ones, which err more, but
    never as worse than the most bits that are rotated.
    """
    if bits < 1:
        return sparse_noise(bits) * norm_sq
    if not rotated:
        return uniform_noise(peak_energy, bits)
    if bits in rotated:
        return ROTATED_GAMMA[bits] * norm_sq
    return min(uniform_noise(peak_energy, bits), ROTATED_GAMMA[rotated[-1]] * norm_sq)


def uniform_noise(peak_energy: float, bits: Width) -> float:
    """Expected squared error of a uniform stochastic quantizer.

    With s = 2^(b−1) − 1 levels it is d/(6s²)·max² per bucket (DQ-SGD, Yan et al. 2021, with p = ∞); at one bit
    it is at most d·max². 16 and 32 bits count as none.
    """
    if bits >= 16:
        return 0.0
    levels = 2 ** (bits - 1) - 1
    return peak_energy / (6 * levels**2) if levels else peak_energy


@functools.lru_cache
def sparse_noise(bits: Width) -> float:
    """Noise of a width below one bit, relative to ‖g‖²: ω = 1/κ − 1, for the share κ of the energy that is sent.

    κ is that of the largest magnitudes of a Laplace law, ρ·(1 + t + t²/2) with t = ln(1/ρ), ρ the share of elements
    that the width has room for. A contraction of 1 − κ is that of an unbiased code of variance ω scaled by 1/(1 + ω)
    (Beznosikov et al. 2020). Derived for this project: real gradients have heavier tails, hence less noise.
    """
    numel = 2**24  # large enough for the share not to depend on it
    share = cuda_ext.sparse_count(numel, round(1 / bits)) / numel
    t = math.log(1 / share)
    return 1 / (share * (1 + t + t * t / 2)) - 1
