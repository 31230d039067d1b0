"""Methods that train replicas apart and average their parameters from time to time."""

import dataclasses
import time

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from mqgrad.checks import check_count, check_not_negative, check_positive

from .base import Setup
from .measured import MeasuredMethod


@dataclasses.dataclass(kw_only=True)
class LocalSGD(MeasuredMethod):
    """Local SGD (Stich, ICLR 2019): every rank steps alone, and every ``period`` iterations parameters are averaged.

    Parameters travel in fp32. Buffers and the optimizer's state stay local. Between two averages the replicas differ,
    and an evaluation shows rank 0's.

    Raises:
        ValueError: for a setting that is not positive.
    """

    period: int = 8
    """τ: iterations between two averages."""

    def __post_init__(self) -> None:
        check_count(period=self.period)

    @property
    def has_exchanged(self) -> bool:
        return self._iterations % self.period == 0

    def step(self, loss: torch.Tensor) -> None:
        self._setup.optimizer.step()
        self._iterations += 1
        waited = 0.0
        if self.has_exchanged:
            start = time.perf_counter()
            self.exchange()
            waited = time.perf_counter() - start
        self._count(loss, waited)

    def exchange(self) -> None:
        """What happens every ``period`` iterations."""
        self.set_parameters(self.mean_parameters())

    def mean_parameters(self) -> torch.Tensor:
        """Parameters averaged over ranks, float32 [N]."""
        mean = self.parameters()
        self._transport.all_reduce_(mean)
        return mean.div_(self._transport.world_size)

    def parameters(self) -> torch.Tensor:
        """This rank's parameters, float32 [N]."""
        return parameters_to_vector(self._setup.model.parameters()).detach().float()

    def set_parameters(self, values: torch.Tensor) -> None:
        """Overwrite this rank's parameters with a copy of a vector [N]; torch's own function would alias it."""
        parameters = list(self._setup.model.parameters())
        with torch.no_grad():
            for parameter, part in zip(
                parameters, values.split([p.numel() for p in parameters]), strict=True
            ):
                parameter.copy_(part.view_as(parameter))


@dataclasses.dataclass(kw_only=True)
class NoSync(MeasuredMethod):
    """Every rank trains alone and nothing is sent: the shortest time that an iteration can take.

    The replicas are unrelated runs on 1/W of the data each, so their loss says nothing.
    """

    def step(self, loss: torch.Tensor) -> None:
        self._setup.optimizer.step()
        self._iterations += 1
        self._count(loss, waited=0.0)


@dataclasses.dataclass(kw_only=True)
class SlowMo(LocalSGD):
    """Slow momentum (Wang et al., ICLR 2020, algorithm 1) on top of local SGD. Every ``period`` iterations:

    1. Average the parameters x_τ over ranks.
    2. u ← β·u + (x₀ − x_τ)/γ, with x₀ the parameters after the last such step and γ the learning rate.
    3. x₀ ← x₀ − α·γ·u; all replicas go on from there.

    β = 0, α = 1 is local SGD. The base optimizer's own momentum is kept across averages ("maintain", in the paper).

    Raises:
        ValueError: for a period or α that is not positive, or a β that is negative or not finite.
    """

    beta: float = 0.5
    """β: momentum of the slow step."""
    alpha: float = 1.0
    """α: learning rate of the slow step."""
    _anchor: torch.Tensor = dataclasses.field(init=False, repr=False)
    _momentum: torch.Tensor = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(beta=self.beta)
        check_positive(alpha=self.alpha)

    def start(self, setup: Setup) -> nn.Module:
        module = super().start(setup)
        self._anchor = self.parameters()
        self._momentum = torch.zeros_like(self._anchor)
        return module

    def exchange(self) -> None:
        learning_rate = self._setup.optimizer.param_groups[0]["lr"]
        mean = self.mean_parameters()
        if learning_rate > 0:  # at 0 the slow step is one of 0, too, and nothing is known of the gradient
            self._momentum.mul_(self.beta).add_((self._anchor - mean).div_(learning_rate))
            self._anchor.add_(self._momentum, alpha=-self.alpha * learning_rate)
        else:
            self._anchor = mean
        self.set_parameters(self._anchor)
