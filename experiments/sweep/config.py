"""The grid of a comparison: systems × workloads × optimizers × links × seeds."""

import dataclasses
import itertools
import json
import random
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mqgrad.checks import check_positive
from mqgrad.controllers.registry import PolicySpec
from mqgrad.files import file_digest
from mqgrad.policies.policy import policy_path
from mqgrad.trainers.workloads.smooth import compressor_for
from mqgrad.trainers.workloads.workload import make_workload, module_digests, workload_settings

from ..netlab.lab import MAX_HOSTS
from ..settings import parse_settings
from .axes import FP32, OWN_OPTIMIZER, Cell, Link, Run, System, fp32_of


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig:
    """Everything that a sweep's figures depend on, the machine and the contents of files apart.

    Raises:
        ValueError: no link, something twice, or a run that nothing ends.
    """

    systems: tuple[str, ...]
    """As :class:`System` reads them; ``plain-ddp`` or ``fixed:32`` among them."""
    workloads: tuple[str, ...]
    links: tuple[str, ...]
    """As :class:`Link` reads them."""
    seeds: tuple[int, ...]
    optimizers: tuple[str, ...] = (OWN_OPTIMIZER,)
    """Values of the setting ``optimizer``, for workloads that have it; ``own`` leaves it as it is."""
    hosts: int = 2
    """Ranks of every run: hosts of the lab, or local processes on an emulated link."""
    budget_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Training seconds of a run, by workload, or by ``WORKLOAD@LINK``, which goes before it."""
    iterations: int | None = None
    """Iterations of a run; with a budget too, whichever is spent first."""
    settings: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Settings by workload."""
    time_limit_seconds: float | None = None
    """Wall-clock limit of a run, start-up and evaluations included; None: generous, from the budget."""

    def __post_init__(self) -> None:
        self._check_grid()
        for link in self.links:
            Link.parse(link)
            for workload in self.workloads:
                self._check_end(workload, link)
        self._check_time_limit()

    def _check_time_limit(self) -> None:
        if self.time_limit_seconds is None:
            return
        check_positive(time_limit_seconds=self.time_limit_seconds)
        longest = max(self.budget_seconds.values(), default=0.0)
        if self.iterations is None and self.time_limit_seconds <= longest:
            raise ValueError(
                f"time_limit_seconds {self.time_limit_seconds:g} ends every run whose budget is {longest:g} s too "
                "early: leave time for starting and evaluating, too"
            )

    @property
    def fp32(self) -> str:
        """The system that everything is compared with."""
        return fp32_of(self.systems)

    def check_names(self) -> None:
        """Raises ValueError for a workload, a setting or a system that cannot be made, listing the known ones; for
        two names of one system; for a compressor or an optimizer that the workloads have no use for; and where fp32
        is not among the systems."""
        for workload, system in itertools.product(self.workloads, self.systems):
            for link in self.links:
                System.parse(system).check(self.budget_of(workload, link), self.hosts)
            for optimizer in self.optimizers_of(workload):
                trained = make_workload(workload, **self.workload_settings(workload, optimizer, system))
                compressor_for(trained, System.parse(system).compressor, self.hosts)
        self._check_aliases()
        has_choice = any("optimizer" in workload_settings(workload) for workload in self.workloads)
        if not has_choice and self.optimizers != (OWN_OPTIMIZER,):
            names = ", ".join(self.workloads)
            raise ValueError(f"none of {names} has a setting 'optimizer': leave the choice of optimizers out")
        if self.fp32 not in self.systems:  # after the names: one of them may be fp32's, mistyped
            raise ValueError(f"the target comes from fp32 runs: add {FP32} to the systems")

    def _check_aliases(self) -> None:
        names: dict[System, str] = {}
        for name in self.systems:
            system = System.parse(name)
            other = names.setdefault(system._replace(controller=system.controller_of_run()), name)
            if other != name:
                raise ValueError(f"{other!r} and {name!r} are the same system: leave one of them out")

    def optimizers_of(self, workload: str) -> tuple[str, ...]:
        """The compared optimizers, or its own alone for a workload that offers no choice."""
        return self.optimizers if "optimizer" in workload_settings(workload) else (OWN_OPTIMIZER,)

    def workload_settings(self, workload: str, optimizer: str, system: str) -> dict[str, Any]:
        """The settings of a run's workload."""
        chosen = {} if optimizer == OWN_OPTIMIZER else {"optimizer": optimizer}
        own = parse_settings(System.parse(system).settings)
        return {**self.settings.get(workload, {}), **chosen, **own}

    def digests(self) -> dict[str, dict[str, str]]:
        """Of the files that runs depend on besides the configuration, by name: policies and workloads' modules."""
        return {"policies": self._policy_digests(), "workloads": module_digests(self.workloads)}

    def _policy_digests(self) -> dict[str, str]:
        """Of each policy file among the systems, the packaged one included."""
        controllers = {System.parse(name).controller or "" for name in self.systems}
        policies = {policy.path for name in controllers if (policy := PolicySpec.parse(name))}
        return {path: file_digest(policy_path(path)) for path in sorted(policies)}

    def runs(self) -> Iterator[Run]:
        """All runs, in an order that seldom starts processes anew: one cell after another, in it one seed after
        another, so that a part of a cell compares everything and a slow hour of the machine falls on all systems
        alike. Within a seed systems come in an order of its own, so that a slow minute falls on others each time;
        those systems that change settings come last."""
        by_settings = sorted(self.systems, key=lambda name: System.parse(name).settings)  # a stable sort
        for cell in self.cells():
            for _, alike in itertools.groupby(by_settings, lambda name: System.parse(name).settings):
                systems = list(alike)
                for seed in self.seeds:
                    shuffled = random.Random(f"{cell} {seed}").sample(systems, len(systems))
                    yield from (Run(*cell, system, seed) for system in shuffled)

    def cells(self) -> list[Cell]:
        """Everything but systems and seeds."""
        return [
            Cell(workload, optimizer, link)
            for workload in self.workloads
            for optimizer in self.optimizers_of(workload)
            for link in self.links
        ]

    def budget_of(self, workload: str, link: str) -> float | None:
        """Training seconds of a run; None where only iterations end it."""
        return self.budget_seconds.get(f"{workload}@{link}", self.budget_seconds.get(workload))

    def limit_of(self, run: Run) -> float:
        """Wall-clock seconds after which a run is stopped."""
        if self.time_limit_seconds is not None:
            return self.time_limit_seconds
        budget = self.budget_of(run.workload, run.link)
        return 1800.0 if budget is None else 180.0 + 10.0 * budget

    def command_line(self) -> str:
        """The command that makes this sweep, apart from where it writes to."""
        options = {
            **{kind: ",".join(names) for kind, names in self._systems_by_kind().items()},
            "workloads": ",".join(self.workloads),
            "optimizers": ",".join(self.optimizers),
            "links": ",".join(self.links),
            "seeds": len(self.seeds),
            "first-seed": self.seeds[0],
            "hosts": self.hosts,
            "budget-seconds": ",".join(f"{name}={value:.15g}" for name, value in self.budget_seconds.items()),
            "iterations": self.iterations,
            "time-limit-seconds": self.time_limit_seconds,
        }
        words = [f"--{name}={value}" for name, value in options.items() if value not in (None, "")]
        for workload, settings in self.settings.items():
            words += [f"--set={workload}:{name}={json.dumps(value)}" for name, value in settings.items()]
        return shlex.join(["mqgrad", "compare", "--output=FOLDER", *words])

    def _systems_by_kind(self) -> dict[str, list[str]]:
        kinds: dict[str, list[str]] = {"controllers": [], "compressors": [], "methods": []}
        for name in self.systems:
            kinds[System.parse(name).kind].append(name)
        return kinds

    def to_dict(self) -> dict[str, Any]:
        """Plain types, as JSON gives them back."""
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "SweepConfig":
        """The configuration that :meth:`to_dict` was called on."""
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        return cls(**arguments)

    def _check_grid(self) -> None:
        for what in ("systems", "workloads", "optimizers", "links", "seeds"):
            values = getattr(self, what)
            if not values:
                raise ValueError(f"no {what} to compare")
            twice = sorted({str(value) for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        if not 2 <= self.hosts <= MAX_HOSTS:
            raise ValueError(f"{self.hosts} hosts: 2 to {MAX_HOSTS} can be compared")
        on_links = [f"{workload}@{link}" for workload in self.workloads for link in self.links]
        self._check_keys("budget_seconds", self.budget_seconds, [*self.workloads, *on_links])
        self._check_keys("settings", self.settings, self.workloads)

    def _check_keys(self, what: str, mapping: Iterable[str], known: Sequence[str]) -> None:
        if unknown := sorted(set(mapping) - set(known)):
            raise ValueError(
                f"{what} for {', '.join(unknown)}, which is not compared; compared are {', '.join(known)}"
            )

    def _check_end(self, workload: str, link: str) -> None:
        budget = self.budget_of(workload, link)
        if budget is None and self.iterations is None:
            raise ValueError(
                f"nothing ends a run of {workload} at {link}: give budget_seconds, iterations or both"
            )
        if budget is not None:
            check_positive(**{f"budget_seconds of {workload} at {link}": budget})
