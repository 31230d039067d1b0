"""What an environment, a benchmark or a command drives: W ranks that train one model together."""

import copy
import numbers
from typing import Protocol, TypeAlias, runtime_checkable

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.controllers import make_controller
from mqgrad.controllers.base import Controller
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.widths import Width

from ..link import LinkEmulation
from ..methods import DEFAULT_METHOD
from ..workloads.workload import Workload

ControllerSpec: TypeAlias = str | Controller
"""As ``mqgrad.controllers.make_controller`` takes it (``"fixed:4"``, a policy file), or an object that pickles."""


def own_controller(spec: ControllerSpec | None) -> Controller | None:
    """A controller for one rank and one run alone, as it keeps state.

    Raises:
        ValueError: an unknown one.
    """
    return make_controller(spec) if isinstance(spec, str) else copy.deepcopy(spec)


def check_run_seed(seed: object) -> None:
    """Raise ``ValueError`` unless ``seed`` is an integer from 0 to 2³² − 1, which every generator takes."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**32:
        raise ValueError(f"seed must be an integer from 0 to 2**32 - 1, not {seed!r}")


@runtime_checkable
class Restartable(Protocol):
    """A cluster that may start new workers after a failure."""

    @property
    def can_restart(self) -> bool: ...

    @property
    def needs_restart(self) -> bool:
        """Whether a failure or an interruption has cost its workers."""
        ...

    def restart(self) -> None: ...


@runtime_checkable
class Cluster(Protocol):
    """W ranks. One run lasts from a ``reset`` to the next."""

    @property
    def world_size(self) -> int: ...

    @property
    def workload(self) -> Workload: ...

    def reset(
        self,
        seed: int,
        *,
        link: LinkEmulation | None = None,
        controller: ControllerSpec | None = None,
        compressor: str = DEFAULT_COMPRESSOR,
        method: str = DEFAULT_METHOD,
    ) -> None:
        """Begin a run: a fresh model, optimizer and data order.

        Args:
            seed: of initial weights, data order and stochastic rounding.
            link: *emulated* slow network of this run; None for the real one, or the clock's.
            controller: decides the width; if None, the caller of :meth:`run` does.
            compressor: how gradients travel, as ``mqgrad.make_compressor`` takes it.
            method: how the replicas train together, as :func:`mqgrad.trainers.methods.make_method` takes it; all but
                ``ddp`` have neither width nor controller, and most send fp32.
        """
        ...

    def run(
        self, iterations: int, bits: Width | None = None, *, to_exchange: bool = False
    ) -> IntervalStatistics:
        """Train for some iterations.

        Args:
            iterations: how many.
            bits: width from the first of them on; None when a controller decides.
            to_exchange: whether to go on until one ends with an exchange between the replicas, where the method does
                not exchange in all of them.

        Returns:
            Statistics of these iterations. A loss that is not finite is reported like any other.
        """
        ...

    def evaluate(self) -> dict[str, float]:
        """Held-out figures of the current model; takes no training time."""
        ...

    def close(self) -> None:
        """Release processes. May be called twice."""
        ...
