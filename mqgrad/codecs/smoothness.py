"""Quantization that knows a function's smoothness matrix (Wang, Safaryan and Richtárik 2021).

A gradient v of a function with smoothness matrix L is sent as C(L^{+1/2}·v) and read as L^{1/2}·C(…): directions in
which the function is flat get coarse steps. C rounds a block w to multiples of ‖w‖·h_j at random, without bias, so
that

    E‖L^{1/2}(C(w) − w)‖² = Σ_j L_jj·‖w‖²·h_j²·f_j·(1 − f_j) ≤ ‖w‖²·sqrt(Σ_j (L_jj·h_j)²),

f_j being the fraction that is rounded. The budget β bounds the expected number of non-zero codes.
"""

import dataclasses
from typing import Literal

import numpy as np
import torch

from ..checks import check_choice, check_count, check_positive

StepRule = Literal["uniform", "varying"]


@dataclasses.dataclass(frozen=True)
class SmoothQuantizer:
    """C and its transforms for one matrix. All figures are float64.

    Args:
        matrix: L, symmetric and positive semidefinite [d, d].
        budget: β of all blocks together.
        rule: ``varying``, h_j = sqrt(Σ_l L_ll / L_jj)/β; ``uniform``, one step a block, h = sqrt(d)/β.
        blocks: parts of w with a norm of their own and a share of β for which their bounds are equal.

    Raises:
        ValueError: for a budget that is not above 0, an unknown rule, or more blocks than elements.
    """

    matrix: torch.Tensor
    budget: float
    rule: StepRule = "varying"
    blocks: int = 1
    root: torch.Tensor = dataclasses.field(init=False)
    """L^{1/2} [d, d]."""
    inverse_root: torch.Tensor = dataclasses.field(init=False)
    """L^{+1/2} [d, d], the pseudoinverse."""
    steps: torch.Tensor = dataclasses.field(init=False)
    """h [d]; infinite where the function does not depend on the element, of which nothing is sent."""
    bound: float = dataclasses.field(init=False)
    """E‖L^{1/2}(C(w) − w)‖² ≤ bound·‖w‖²: tr(L)/β with varying steps."""

    def __post_init__(self) -> None:
        check_settings(self.budget, self.rule, self.blocks)
        if self.blocks > len(self.matrix):
            raise ValueError(f"blocks {self.blocks} are more than the {len(self.matrix)} elements")
        values, vectors = torch.linalg.eigh(self.matrix.double())
        values = values.clamp(min=0.0)
        kept = values > values[-1] * len(values) * torch.finfo(torch.float64).eps
        inverse = torch.where(kept, values, 1.0).rsqrt() * kept
        parts = self.matrix.double().diagonal().tensor_split(self.blocks)
        weights = torch.stack([_weight(part, self.rule) for part in parts])
        shares = self.budget * weights / weights.sum()
        steps = [_steps(part, float(share), self.rule) for part, share in zip(parts, shares, strict=True)]
        for name, value in (
            ("root", (vectors * values.sqrt()) @ vectors.T),
            ("inverse_root", (vectors * inverse) @ vectors.T),
            ("steps", torch.cat(steps)),
            ("bound", float(weights.sum()) / self.budget),
        ):
            object.__setattr__(self, name, value)

    @property
    def omega(self) -> float:
        """E‖C(w) − w‖² ≤ ω·‖w‖²: the largest ‖h‖ of a block."""
        return max(float(part[part.isfinite()].norm()) for part in self.steps.tensor_split(self.blocks))

    @property
    def payload_bytes(self) -> int:
        """A float32 norm a block, then ceil(log2(2·ceil(1/h_j) + 1)) bits an element."""
        return 4 * self.blocks + -(-int(self._widths.sum()) // 8)

    def encode(self, v: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Code v [d] as uint8 [payload_bytes]."""
        w = self.inverse_root @ v.double()
        norms = torch.stack([part.norm() for part in w.tensor_split(self.blocks)]).float()
        grid = self._grid(norms)
        ratio = torch.where(grid > 0, w / grid, 0.0).nan_to_num()
        levels = torch.floor(ratio + torch.rand(len(w), generator=generator, dtype=torch.float64))
        codes = (levels.clamp(-self._highest, self._highest) + self._highest).long()
        return torch.cat([norms.view(torch.uint8), _pack(codes, self._widths)])

    def decode(self, payload: torch.Tensor) -> torch.Tensor:
        """L^{1/2}·C(w), float64 [d]; NaN if v was not finite."""
        norms = payload[: 4 * self.blocks].clone().view(torch.float32)
        levels = _unpack(payload[4 * self.blocks : self.payload_bytes], self._widths) - self._highest
        values = torch.where(self.steps.isfinite(), levels * self._grid(norms), 0.0)
        return self.root @ values

    def _grid(self, norms: torch.Tensor) -> torch.Tensor:
        sizes = torch.tensor([len(part) for part in self.steps.tensor_split(self.blocks)])
        return norms.double().repeat_interleave(sizes) * self.steps

    @property
    def _highest(self) -> torch.Tensor:
        """Largest level of each element, float64 [d]: |w_j| is at most the norm."""
        return (1 / self.steps).ceil()

    @property
    def _widths(self) -> torch.Tensor:
        return (2 * self._highest + 1).log2().ceil().long()


def check_settings(budget: float, rule: str, blocks: int) -> None:
    """Raises ValueError naming the setting that is wrong."""
    check_positive(budget=budget)
    check_choice("steps", rule, ("uniform", "varying"))
    check_count(blocks=blocks)


def _weight(diagonal: torch.Tensor, rule: str) -> torch.Tensor:
    """β times the bound of a block."""
    return diagonal.sum() if rule == "varying" else (len(diagonal) * diagonal.square().sum()).sqrt()


def _steps(diagonal: torch.Tensor, budget: float, rule: str) -> torch.Tensor:
    if not budget:  # the function depends on none of them
        return torch.full_like(diagonal, torch.inf)
    if rule == "varying":
        return torch.where(diagonal > 0, (diagonal.sum() / diagonal).sqrt() / budget, torch.inf)
    return torch.full_like(diagonal, len(diagonal) ** 0.5 / budget)


def _pack(codes: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
    """The lowest ``widths`` bits of each code, one code after another."""
    place = np.arange(int(widths.max()))
    bits = (codes.numpy()[:, None] >> place) & 1
    stream = bits[place < widths.numpy()[:, None]].astype(np.uint8)
    return torch.from_numpy(np.packbits(stream, bitorder="little"))


def _unpack(packed: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
    place = np.arange(int(widths.max()))
    used = place < widths.numpy()[:, None]
    bits = np.zeros(used.shape, dtype=np.int64)
    bits[used] = np.unpackbits(packed.numpy(), count=int(widths.sum()), bitorder="little")
    return torch.from_numpy((bits << place).sum(1))
