"""Reading what ``mqgrad compare`` is told."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.controllers.registry import is_policy
from mqgrad.trainers.signals import deferred_signals
from mqgrad.trainers.workloads.workload import workload_settings

from ..settings import parse_settings
from .grid import Budgets, Grid
from .grids import GRIDS

if TYPE_CHECKING:
    from ..sweep.config import SweepConfig

_SYSTEMS = ("controllers", "compressors", "methods")


def with_defaults(given: dict[str, Any], grid: str) -> Grid:
    """The grid of this name with what was given in its place, and of budgets, settings and optimizers what is of the
    workloads and links that are left.

    Raises:
        ValueError: an unknown grid.
    """
    if grid not in GRIDS:
        raise ValueError(f"unknown grid {grid!r}; known: {', '.join(GRIDS)}")
    named = GRIDS[grid]
    kept: dict[str, Any] = {}
    budgets: Budgets = {} if "iterations" in given else named.budget_seconds
    if any(kind in given for kind in _SYSTEMS):  # a list of one kind is the whole list
        kept |= dict.fromkeys(_SYSTEMS, ())
    if "workloads" in given:
        own = given["workloads"]
        budgets = {(w, link): s for (w, link), s in budgets.items() if w in ("", *own)}
        kept["settings"] = tuple(text for text in named.settings if text.partition(":")[0] in own)
        kept["optimizers"] = named.optimizers if {*own} <= {*named.workloads} else ("own",)
    if "links" in given:
        links = given["links"]
        budgets = {(w, link): s for (w, link), s in budgets.items() if not link or _compared_as(link, links)}
    return dataclasses.replace(named, **{"budget_seconds": budgets, **kept, **given})


def _compared_as(link: str, links: Sequence[str]) -> str | None:
    """A link's name among those that are compared, which is another one where it had to be emulated; None: not
    among them."""
    from ..sweep.axes import Link

    return next((name for name in (link, Link.parse(link).emulation().name) if name in links), None)


def make_config(
    chosen: Grid, settings: list[str], time_limit_seconds: float | None, console: Console
) -> "SweepConfig":
    """The grid, out of what :func:`with_defaults` gave, and what everything is compared with."""
    from ..sweep.axes import FP32, System
    from ..sweep.config import SweepConfig

    names = [system_name(kind, name) for kind in _SYSTEMS for name in getattr(chosen, kind)]
    links = available_links(list(chosen.links), console)
    systems = tuple(
        sorted(  # as the command that the report gives has them: the order counts where a sweep goes on
            systems_on(links, oracle_as_fixed_widths(names), console),
            key=lambda name: _SYSTEMS.index(System.parse(name).kind),
        )
    )
    return SweepConfig(
        systems=systems if FP32 in systems else (*systems, FP32),
        workloads=chosen.workloads,
        optimizers=chosen.optimizers,
        links=tuple(links),
        seeds=tuple(range(chosen.first_seed, chosen.first_seed + chosen.seeds)),
        hosts=chosen.hosts,
        budget_seconds=budgets_by_name(chosen.budget_seconds, chosen.workloads, links),
        iterations=chosen.iterations,
        settings=parse_workload_settings(settings, chosen.workloads),
        time_limit_seconds=time_limit_seconds,
    )


def system_name(kind: str, name: str) -> str:
    """What an option of this kind names: a controller whose name a compressor has too says what it is on."""
    from ..sweep.axes import System

    if kind != "controllers" or System.parse(name).kind == kind:
        return name
    return re.sub(r"(?= every | with |$)", f" on {DEFAULT_COMPRESSOR}", name, count=1)


def split_list(*texts: str) -> list[str]:
    """``"fixed:2,linear-ramp:start=2,end=8"`` → ``["fixed:2", "linear-ramp:start=2,end=8"]``, of all texts together.

    A part that begins with ``name=`` is a further argument of the system before it in the same text, if it is no
    policy's path.
    """
    return [item for text in texts for item in _items(text)]


def given_list(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Raises BadParameter for a list of nothing, as of a variable of the shell that is not set."""
    items = split_list(*texts)
    if not items:
        raise typer.BadParameter(
            "it is empty; give a name, or leave the option out", param_hint=f"--{option}"
        )
    return tuple(items)


def _items(text: str) -> list[str]:
    items: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if items and re.match(r"\w+=", part) and not is_policy(part):
            items[-1] += f",{part}"
        else:
            items.append(part)
    return items


def oracle_as_fixed_widths(systems: list[str]) -> tuple[str, ...]:
    """The systems, with each ``oracle[:widths=…]`` replaced by the fixed widths that it is the best of.

    The report finds the oracle among the compared fixed widths, whether they were named so or not.
    """
    from ..oracle import oracle_trials

    compared: list[str] = []
    for name in systems:
        trials = oracle_trials(name, DEFAULT_COMPRESSOR)
        compared += [trial for trial in trials if trial not in [*systems, *compared]] if trials else [name]
    return tuple(compared)


def parse_budgets(text: str) -> Budgets:
    """``"6"`` → 6 s for all runs; ``"digits-cnn=6,@100mbit=15,digits-cnn@1gbit=3"``: by workload, link, or both."""
    budgets: dict[tuple[str, str], float] = {}
    for part in filter(None, text.split(",")):
        name, _, figure = part.rpartition("=")
        workload, _, link = name.strip().partition("@")
        try:
            seconds = float(figure)
        except ValueError:
            raise typer.BadParameter(
                f"{part!r} is not SECONDS, WORKLOAD=SECONDS or @LINK=SECONDS", param_hint="--budget-seconds"
            ) from None
        if (workload, link) in budgets:
            raise typer.BadParameter(
                f"{text!r} has two budgets of the same runs", param_hint="--budget-seconds"
            )
        budgets[workload, link] = seconds
    return budgets


def budgets_by_name(budgets: Budgets, workloads: Sequence[str], links: Sequence[str]) -> dict[str, float]:
    """The same by ``WORKLOAD`` and ``WORKLOAD@LINK``. What names no workload is for all of them that have none of
    their own; a link that had to be emulated has its new name."""
    general_first = sorted(budgets.items(), key=lambda item: item[0][0] != "")
    return {
        f"{each}@{_compared_as(link, links) or link}" if link else each: seconds
        for (workload, link), seconds in general_first
        for each in ([workload] if workload else workloads)
    }


def data_root_settings(data_root: Path | None, workloads: Sequence[str]) -> list[str]:
    """The folder as items of ``--set``, which ones that follow override.

    Raises:
        BadParameter: no workload reads its data from a folder.
    """
    if data_root is None:
        return []
    reading = [workload for workload in workloads if "data_root" in workload_settings(workload)]
    if not reading:
        raise typer.BadParameter(
            f"none of {', '.join(workloads)} reads its data from a folder", param_hint="--data-root"
        )
    return [f"{workload}:data_root={data_root.absolute()}" for workload in reading]


def parse_workload_settings(items: list[str], workloads: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``["bytes-gpt:width=64", "batch_size=8"]`` → settings by workload."""
    settings: dict[str, dict[str, Any]] = {}
    for item in items:
        name, separator, value = item.partition("=")
        workload, _, name = name.rpartition(":")
        for each in [workload] if workload else workloads:
            settings.setdefault(each, {}).update(parse_settings([f"{name}{separator}{value}"]))
    return settings


def available_links(names: list[str], console: Console) -> list[str]:
    """The links, emulated where a lab cannot be built here, and a notice of that.

    One is built to know: root in a container may lack the capabilities, or the kernel a module.
    """
    from ..netlab.iproute import NetLabError
    from ..netlab.lab import NetLab
    from ..sweep.axes import Link

    links = [Link.parse(name) for name in names]
    if all(link.emulated for link in links):
        return names
    try:
        with deferred_signals(), NetLab(1):  # what was built is removed first
            return names
    except NetLabError as error:
        console.print(f"[yellow]all links are emulated in the transport:[/yellow] {escape(str(error))}")
        return list(dict.fromkeys(link.emulation().name for link in links))


def systems_on(links: list[str], systems: tuple[str, ...], console: Console) -> tuple[str, ...]:
    """The systems, without those that an emulated link cannot pace if there is one, and a notice of that."""
    from ..sweep.axes import Link, System

    if not any(Link.parse(link).emulated for link in links):
        return systems
    left_out = [name for name in systems if not System.parse(name).can_be_emulated]
    if left_out:
        names = ", ".join(left_out)
        console.print(f"[yellow]left out, for emulated links cannot pace them:[/yellow] {escape(names)}")
    return tuple(name for name in systems if name not in left_out)
