"""What ``mqgrad compare`` can be asked for."""

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

_FIRST_SEED = 101  # seeds that no policy has been trained on unless someone chose to

Budgets: TypeAlias = Mapping[tuple[str, str], float]
"""Training seconds of a run, by workload and link. Where one of the two is empty: for all that are not named."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """What is asked for; :class:`mqgrad.experiments.sweep.config.SweepConfig` is what of it is compared."""

    controllers: tuple[str, ...]
    compressors: tuple[str, ...] = ()
    methods: tuple[str, ...]
    workloads: tuple[str, ...]
    optimizers: tuple[str, ...] = ("own",)
    links: tuple[str, ...]
    seeds: int
    """Runs per cell."""
    first_seed: int = _FIRST_SEED
    hosts: int
    budget_seconds: Budgets
    iterations: int | None = None
    """Of a run, besides or instead of the seconds."""
    settings: tuple[str, ...] = ()
    """Of a workload each, as ``--set`` takes them."""
