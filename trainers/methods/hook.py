"""Synchronous data-parallel training through the compression hook: the default method."""

import contextlib
import dataclasses
import warnings

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad
from mqgrad.controllers.period_rules import PeriodRule, make_period_rule
from mqgrad.hook.param_groups import groups_of
from mqgrad.hook.round_settings import RoundSettings
from mqgrad.widths import Width

from .base import RankInterval, Setup
from .interval import CompressedInterval

_REGROUPED = 2
"""Iterations after which DDP keeps its buckets as they are."""


@dataclasses.dataclass(kw_only=True, slots=True)
class DDP:
    """``DistributedDataParallel`` with ``mqgrad.compression_hook``.

    Raises:
        ValueError: for a wrong period, slow momentum, period rule or number of iterations.
    """

    period: int = 1
    """Iterations between two averages; see :class:`mqgrad.CompressionState`."""
    slow_momentum: float = 0.0
    variance_reduced: bool = False
    period_rule: str = ""
    """Chooses the period from then on, as :func:`mqgrad.controllers.period_rules.make_period_rule` takes it."""
    frozen_every: int = 0
    """Freezes Adam's second moment but for every so many iterations; see :class:`mqgrad.FrozenSecondMoment`. 0 does
    not."""
    _setup: Setup = dataclasses.field(init=False, repr=False)
    _ddp: DistributedDataParallel = dataclasses.field(init=False, repr=False)
    _unsynchronized: contextlib.ExitStack = dataclasses.field(
        init=False, repr=False, default_factory=contextlib.ExitStack
    )
    _compression: mqgrad.CompressionState = dataclasses.field(init=False, repr=False)
    _interval: CompressedInterval = dataclasses.field(init=False, repr=False)
    _steps: int = dataclasses.field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        RoundSettings(
            period=self.period,
            slow_momentum=self.slow_momentum,
            variance_reduced=self.variance_reduced,
            period_rule=self._make_rule(),
        )
        if self.second_moment is not None and self.is_local:
            raise ValueError("frozen_every is for averages of gradients: leave out period and period_rule")

    @property
    def second_moment(self) -> mqgrad.FrozenSecondMoment | None:
        """When Adam's follows the gradient; None: always."""
        return mqgrad.FrozenSecondMoment(every=self.frozen_every) if self.frozen_every else None

    def _make_rule(self) -> PeriodRule | None:
        return make_period_rule(self.period_rule) if self.period_rule else None

    @property
    def is_local(self) -> bool:
        """Whether every rank steps alone between two averages."""
        return self.period > 1 or self.period_rule != ""

    @property
    def can_be_paced(self) -> bool:
        return True

    @property
    def has_exchanged(self) -> bool:
        return self._compression.replicas_are_equal

    def start(self, setup: Setup) -> nn.Module:
        self._setup = setup
        self._ddp = ddp = DistributedDataParallel(setup.model, process_group=setup.group)
        self._compression = mqgrad.CompressionState(
            setup.controller,
            process_group=setup.group,
            compressor=setup.compressor,
            seed=setup.seed,
            period=self.period,
            slow_momentum=self.slow_momentum,
            variance_reduced=self.variance_reduced,
            period_rule=self._make_rule(),
            optimizer=groups_of(setup.optimizer),
            second_moment=self.second_moment,
            link=setup.link,
            timeout_seconds=setup.timeout_seconds,
        )
        ddp.register_comm_hook(self._compression, mqgrad.compression_hook)
        self._interval = CompressedInterval(self._compression)
        return ddp

    def begin_interval(self, iterations: int, bits: Width | None) -> None:
        self._interval.begin(iterations, bits)

    def step(self, loss: torch.Tensor) -> None:
        self._setup.optimizer.step()
        self._interval.step(loss)
        self._steps += 1
        if self.is_local and self._steps == _REGROUPED:
            self._unsynchronized.enter_context(self._ddp.no_sync())  # the hook has seen all that it has to

    def end_interval(self) -> RankInterval:
        return self._interval.end()

    def close(self) -> None:
        self._unsynchronized.close()
        # A run may be cut off within a round, and its failures are told elsewhere.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            self._compression.close()
