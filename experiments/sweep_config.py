"""The grid of a comparison: controllers × workloads × links × seeds."""

import dataclasses
import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqgrad.controllers import make_controller
from mqgrad.trainers.workload import make_workload

from .netlab import MAX_HOSTS
from .netlab_link import LinkRates, parse_link_rates
from .provenance import file_digest

DENSE = "fixed:32"
"""The controller that sends fp32: targets and ratios refer to it."""

_EMULATED = "emulated:"


class Link(NamedTuple):
    """A link as the command line names it.

    ``100mbit`` is shaped in the kernel and ``none`` not shaped, both between hosts of a lab; ``emulated:100mbit`` is
    paced in the transport of local processes, and ``emulated:none`` is their loopback as it is. A link may switch
    between rates: ``100mbit/1gbit@10s`` is 100 Mbit/s for the first 10 s of a run, then 1 Gbit/s for 10 s, and so on.
    """

    name: str
    emulated: bool
    rates: LinkRates

    @classmethod
    def parse(cls, name: str) -> "Link":
        """Raises ValueError if it is no link."""
        emulated = name.startswith(_EMULATED)
        try:
            rates = parse_link_rates(name.removeprefix(_EMULATED))
        except ValueError as error:
            raise ValueError(f"link {name!r}: {error}; or emulated:RATE, which needs no root") from None
        if emulated and len(rates.mbit_per_s) > 1 and None in rates.mbit_per_s:
            raise ValueError(
                f"link {name!r}: an emulated link cannot switch to or from none: give a high rate"
            )
        return cls(name, emulated, rates)

    def emulation(self) -> "Link":
        """The same rate without a lab."""
        return Link(_EMULATED + self.name.removeprefix(_EMULATED), True, self.rates)


class Cell(NamedTuple):
    """One run of the grid."""

    workload: str
    link: str
    controller: str
    seed: int

    def __str__(self) -> str:
        return f"{self.workload} @ {self.link}, {self.controller}, seed {self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig:
    """Everything that a sweep's figures depend on, the machine and the contents of policy files apart.

    Raises:
        ValueError: no link, something twice, no fp32 runs, or a run that nothing ends.
    """

    controllers: tuple[str, ...]
    """As :func:`mqgrad.make_controller` takes them; ``fixed:32`` among them."""
    workloads: tuple[str, ...]
    links: tuple[str, ...]
    """As :class:`Link` reads them."""
    seeds: tuple[int, ...]
    hosts: int = 2
    """Ranks of every run: hosts of the lab, or local processes on an emulated link."""
    budget_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Training seconds of a run, by workload."""
    iterations: int | None = None
    """Iterations of a run; with a budget too, whichever is spent first."""
    settings: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Settings by workload."""
    time_limit_seconds: float | None = None
    """Wall-clock limit of a run, start-up and evaluations included; None: generous, from the budget."""

    def __post_init__(self) -> None:
        self._check_grid()
        for workload in self.workloads:
            self._check_end(workload)
        for link in self.links:
            Link.parse(link)

    def check_names(self) -> None:
        """Raises ValueError for a workload, a setting or a controller that cannot be made, listing the known ones."""
        for workload in self.workloads:
            make_workload(workload, **self.settings.get(workload, {}))
            for controller in self.controllers:
                make_controller(controller, self.budget_seconds.get(workload))

    def policy_digests(self) -> dict[str, str]:
        """A digest of each policy file among the controllers."""
        return {name: file_digest(Path(name)) for name in self.controllers if name.endswith(".mqg")}

    def cells(self) -> Iterator[Cell]:
        """All runs. One seed after another, so that a part of the sweep compares everything, and so that a slow
        hour of the machine falls on all controllers alike."""
        for seed, workload, link, controller in itertools.product(
            self.seeds, self.workloads, self.links, self.controllers
        ):
            yield Cell(workload, link, controller, seed)

    def limit_of(self, cell: Cell) -> float:
        """Wall-clock seconds after which a run is stopped."""
        if self.time_limit_seconds is not None:
            return self.time_limit_seconds
        budget = self.budget_seconds.get(cell.workload)
        return 1800.0 if budget is None else 180.0 + 10.0 * budget

    def command_line(self) -> str:
        """The command that makes this sweep, apart from where it writes to."""
        options = {
            "controllers": ",".join(self.controllers),
            "workloads": ",".join(self.workloads),
            "links": ",".join(self.links),
            "seeds": len(self.seeds),
            "hosts": self.hosts,
            "budget-seconds": ",".join(f"{name}={value:g}" for name, value in self.budget_seconds.items()),
            "iterations": self.iterations,
            "time-limit-seconds": self.time_limit_seconds,
        }
        words = [f"--{name}={value}" for name, value in options.items() if value]
        for workload, settings in self.settings.items():
            words += [f"--set={workload}:{name}={json.dumps(value)}" for name, value in settings.items()]
        return shlex.join(["mqgrad", "compare", "--output=FOLDER", *words])

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
        for what in ("controllers", "workloads", "links", "seeds"):
            values = getattr(self, what)
            if not values:
                raise ValueError(f"no {what} to compare")
            twice = sorted({str(value) for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        if DENSE not in self.controllers:
            raise ValueError(f"the target comes from fp32 runs: add {DENSE} to the controllers")
        if not 2 <= self.hosts <= MAX_HOSTS:
            raise ValueError(f"{self.hosts} hosts: 2 to {MAX_HOSTS} can be compared")
        for what, mapping in (("budget_seconds", self.budget_seconds), ("settings", self.settings)):
            unknown = sorted(set(mapping) - set(self.workloads))
            if unknown:
                raise ValueError(
                    f"{what} for {', '.join(unknown)}, which is not compared; "
                    f"compared are {', '.join(self.workloads)}"
                )

    def _check_end(self, workload: str) -> None:
        budget = self.budget_seconds.get(workload)
        if budget is None and self.iterations is None:
            raise ValueError(f"nothing ends a run of {workload}: give budget_seconds, iterations or both")
        if budget is not None and budget <= 0:
            raise ValueError(f"budget_seconds {budget} of {workload} must be positive")
