"""What the axes of a comparison name: links, systems, and one run of the grid."""

import contextlib
import re
from collections.abc import Collection
from typing import NamedTuple

from mqgrad.compatibility import check_compatible
from mqgrad.compressors import DEFAULT_COMPRESSOR, compressor_names, make_compressor
from mqgrad.controllers import make_controller
from mqgrad.trainers.methods import (
    DEFAULT_METHOD,
    BackupWorkers,
    PlainDDP,
    has_width,
    make_method,
    method_names,
)

from ..netlab.link import LinkRates, parse_link_rates
from ..runs import default_controller

FP32 = "plain-ddp"
"""The system that sends fp32 by PyTorch's own DDP, without our hook: targets refer to it."""

HOOKED_FP32 = "fixed:32"
"""The same through our hook, which measures gradients."""

NO_EXCHANGE = ("no-sync", "none")
"""A method and a compressor that send no gradients, the one that sends nothing at all first; see
:func:`exchanges_nothing`."""

OWN_OPTIMIZER = "own"
"""The optimizer that a workload takes if nothing else is set."""

_EMULATED = "emulated:"


def exchanges_nothing(system: str) -> bool:
    """Whether a system sends no gradients, whatever else is said of it; then its losses say nothing."""
    parsed = System.parse(system)
    return parsed.method in NO_EXCHANGE or parsed.compressor in NO_EXCHANGE


def fp32_of(systems: Collection[str]) -> str:
    """What fp32 means among these systems: PyTorch's own, or in sweeps that lack it ours."""
    return FP32 if FP32 in systems else HOOKED_FP32


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


_POLICY = re.compile(r"(.*\.mqg(?::\S*)?)((?: .*)?)")
"""A policy file, whose path may have any word in it, with its arguments; then what follows."""
_ANY_CONTROLLER = "fixed:1"
_SUFFIXES = {"every": "period", "frozen": "frozen_every"}
"""Of a system's name, each before a value, and the argument of the default method that it stands for."""


class System(NamedTuple):
    """What is compared: a compressor with a controller that sets its width, or another way of training than DDP.

    ``goodput`` is a controller on the default compressor, ``powersgd:rank=4`` a compressor at the width it begins
    with, ``goodput on qsgd`` names both, ``goodput on qsgd every 8`` averages what parameters have moved every 8
    iterations, ``fixed:1 frozen 16`` freezes Adam's second moment but for every 16th iteration, and
    ``local-sgd:period=8`` is a method of training. ``dgc with momentum=0`` changes a setting of the
    workload for this system alone.
    """

    controller: str | None
    """As :func:`mqgrad.make_controller` takes it; None: the compressor's own width."""
    compressor: str
    """As :func:`mqgrad.make_compressor` takes it."""
    method: str = DEFAULT_METHOD
    """As :func:`mqgrad.trainers.methods.make_method` takes it."""
    settings: tuple[str, ...] = ()
    """Settings of the workload, as ``mqgrad run --set`` takes them."""

    @classmethod
    def parse(cls, name: str) -> "System":
        """What a name stands for; :meth:`check` tells whether there is such a thing."""
        if policy := _POLICY.fullmatch(name):
            path, suffixes = policy.groups()
            return cls.parse(f"{_ANY_CONTROLLER}{suffixes}")._replace(controller=path)
        name, _, settings = name.partition(" with ")
        return cls._parse(name)._replace(settings=tuple(filter(None, settings.split(","))))

    @classmethod
    def _parse(cls, name: str) -> "System":
        for word, argument in _SUFFIXES.items():
            system, found, value = name.rpartition(f" {word} ")
            if found:
                parsed = cls._parse(system)
                if parsed.method != DEFAULT_METHOD:
                    raise ValueError(f"system {name!r}: {system} is a method, with arguments of its own")
                return parsed._replace(method=f"{DEFAULT_METHOD}:{argument}={value}")
        controller, on, compressor = name.partition(" on ")
        if on:
            return cls(controller.strip(), compressor.strip())
        kind = name.partition(":")[0]
        if kind in compressor_names():
            return cls(None, name)
        if kind in method_names():
            return cls(None, DEFAULT_COMPRESSOR, name)
        return cls(name, DEFAULT_COMPRESSOR)

    @property
    def kind(self) -> str:
        """The option of ``mqgrad compare`` that it is named in."""
        if not has_width(self.method):
            return "methods"
        return "compressors" if self.controller is None else "controllers"

    def check(self, budget_seconds: float | None, hosts: int) -> None:
        """Raises ValueError, listing the known names, if it cannot be made, or not with so many hosts, or if its
        controller and compressor do not go together."""
        method = make_method(self.method)
        if isinstance(method, BackupWorkers):
            method.check_world_size(hosts)
        compressor = make_compressor(self.compressor)
        if self.controller is None:
            return
        try:
            controller = make_controller(self.controller, budget_seconds)
        except ValueError as error:
            others = (
                f"a compressor: {', '.join(compressor_names())}; or a method: {', '.join(method_names())}"
            )
            raise ValueError(f"{error}; or {others}") from None
        try:
            check_compatible(controller, compressor)
        except ValueError as error:
            raise ValueError(f"{self.controller!r} on {self.compressor!r}: {error}") from None

    @property
    def has_width(self) -> bool:
        """Whether there is a width to choose; so it is taken to be of compressors that only other versions know."""
        if not has_width(self.method):
            return False
        with contextlib.suppress(ValueError):
            return len(make_compressor(self.compressor).widths) > 1
        return True

    @property
    def torch_hook(self) -> str:
        """The hook of PyTorch's own that its DDP has; empty where there is none, or threads are as ours."""
        method = make_method(self.method)
        if not isinstance(method, PlainDDP) or method.batch_threads or method.hook == "none":
            return ""
        return method.hook

    def tells_waiting(self, link: Link) -> bool:
        """Whether what it waits for communication is known apart from its computing: not of PyTorch's own DDP, unless
        a hook of ours paces it."""
        is_paced = link.emulated and any(rate is not None for rate in link.rates.mbit_per_s)
        return is_paced or not isinstance(make_method(self.method), PlainDDP)

    @property
    def can_be_emulated(self) -> bool:
        """Whether it runs on emulated links."""
        return make_method(self.method).can_be_paced

    def controller_of_run(self) -> str | None:
        """The controller, or the one that keeps the compressor at its own width; None where there is no width."""
        if not has_width(self.method):
            return None
        return self.controller or default_controller(self.compressor)


class Cell(NamedTuple):
    """The runs that are compared with one another."""

    workload: str
    optimizer: str
    link: str

    def __str__(self) -> str:
        optimizer = "" if self.optimizer == OWN_OPTIMIZER else f" {self.optimizer}"
        return f"{self.workload}{optimizer} @ {self.link}"


class Run(NamedTuple):
    """One run of the grid."""

    workload: str
    optimizer: str
    link: str
    system: str
    seed: int

    @property
    def cell(self) -> Cell:
        return Cell(self.workload, self.optimizer, self.link)

    def __str__(self) -> str:
        return f"{self.cell}, {self.system}, seed {self.seed}"
