"""Reading what ``mqgrad compare`` is told."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.trainers.workloads.workload import workload_settings

from ..settings import parse_settings
from .grids import GRIDS

if TYPE_CHECKING:
    from ..sweep.config import SweepConfig

_FIRST_SEED = 101  # seeds that no policy has been trained on unless someone chose to
_SYSTEMS = ("controllers", "compressors", "methods")


def with_defaults(given: dict[str, Any], grid: str) -> dict[str, Any]:
    """What was given, and for the rest what the grid says.

    Raises:
        ValueError: an unknown grid.
    """
    if grid not in GRIDS:
        raise ValueError(f"unknown grid {grid!r}; known: {', '.join(GRIDS)}")
    defaults = {"methods": (), "optimizers": ("own",), "settings": (), **GRIDS[grid]}
    if "iterations" in given:
        del defaults["budget_seconds"]
    if any(kind in given for kind in _SYSTEMS):  # a list of one kind is the whole list
        defaults |= dict.fromkeys(_SYSTEMS, ())
    if "workloads" in given:
        defaults |= _of_workloads(defaults, given["workloads"])
    if "links" in given:
        defaults |= {"budget_seconds": _of_links(defaults.get("budget_seconds"), given["links"])}
    return {**defaults, **given}


def _of_workloads(defaults: dict[str, Any], workloads: list[str]) -> dict[str, Any]:
    """The grid's budgets and settings of these workloads; and its optimizers, if all of them are the grid's."""
    budgets = defaults.get("budget_seconds", "").split(",")
    own_budgets = [text for text in budgets if _place(text)[0] in ("", *workloads)]
    return {
        "budget_seconds": ",".join(own_budgets) or None,
        "settings": [text for text in defaults["settings"] if text.partition(":")[0] in workloads],
        "optimizers": defaults["optimizers"] if set(workloads) <= set(defaults["workloads"]) else ("own",),
    }


def _of_links(budgets: str | None, links: list[str]) -> str | None:
    """The grid's budgets but those of other links."""
    from ..sweep.axes import Link

    kept = []
    for text in filter(None, (budgets or "").split(",")):
        _, link = _place(text)
        if not link or {link, Link.parse(link).emulation().name} & {*links}:
            kept.append(text)
    return ",".join(kept) or None


def _place(budget: str) -> tuple[str, str]:
    """Workload and link of ``[WORKLOAD][@LINK]=SECONDS``; empty: all of them."""
    workload, _, link = budget.rpartition("=")[0].strip().partition("@")
    return workload, link


def make_config(
    chosen: dict[str, Any], settings: list[str], time_limit_seconds: float | None, console: Console
) -> "SweepConfig":
    """The grid, out of what :func:`with_defaults` gave, and what everything is compared with."""
    from ..sweep.axes import FP32
    from ..sweep.config import SweepConfig

    names, first_seed = list(chosen["workloads"]), chosen.get("first_seed", _FIRST_SEED)
    systems = oracle_as_fixed_widths([system_name(kind, name) for kind in _SYSTEMS for name in chosen[kind]])
    links = available_links(list(chosen["links"]), console)
    systems = systems_on(links, systems, console)
    return SweepConfig(
        systems=systems if FP32 in systems else (*systems, FP32),
        workloads=tuple(names),
        optimizers=tuple(chosen["optimizers"]),
        links=tuple(links),
        seeds=tuple(range(first_seed, first_seed + chosen["seeds"])),
        hosts=chosen["hosts"],
        budget_seconds=budgets_on(links, parse_budgets(chosen.get("budget_seconds"), names)),
        iterations=chosen.get("iterations"),
        settings=parse_workload_settings(settings, names),
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

    A part that begins with ``name=`` is a further argument of the system before it in the same text.
    """
    return [item for text in texts for item in _items(text)]


def _items(text: str) -> list[str]:
    items: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if items and re.match(r"\w+=", part):
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


def parse_budgets(text: str | None, workloads: list[str]) -> dict[str, float]:
    """Seconds by ``WORKLOAD`` and ``WORKLOAD@LINK``, from ``"6"`` or ``"digits-cnn=6,@100mbit=15"``: what names no
    workload is for all of them that have none of their own."""
    budgets: dict[str, float] = {}
    seen: set[tuple[str, str]] = set()
    for part in sorted(filter(None, (text or "").split(",")), key=lambda part: _place(part)[0] != ""):
        workload, link = _place(part)
        try:
            seconds = float(part.rpartition("=")[2])
        except ValueError:
            raise typer.BadParameter(
                f"{part!r} is not SECONDS, WORKLOAD=SECONDS or @LINK=SECONDS", param_hint="--budget-seconds"
            ) from None
        if (workload, link) in seen:
            raise typer.BadParameter(
                f"{text!r} has two budgets of the same runs", param_hint="--budget-seconds"
            )
        seen.add((workload, link))
        on_link = f"@{link}" if link else ""
        budgets |= {f"{each}{on_link}": seconds for each in ([workload] if workload else workloads)}
    return budgets


def data_root_settings(data_root: Path | None, workloads: list[str]) -> list[str]:
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


def parse_workload_settings(items: list[str], workloads: list[str]) -> dict[str, dict[str, Any]]:
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
        with NetLab(1):
            return names
    except NetLabError as error:
        console.print(f"[yellow]all links are emulated in the transport:[/yellow] {escape(str(error))}")
        return list(dict.fromkeys(link.emulation().name for link in links))


def budgets_on(links: list[str], budgets: dict[str, float]) -> dict[str, float]:
    """The budgets, those of a link that had to be emulated under its new name."""
    from ..sweep.axes import Link

    renamed: dict[str, float] = {}
    for place, seconds in budgets.items():
        workload, on, link = place.partition("@")
        if on and link not in links and Link.parse(link).emulation().name in links:
            place = f"{workload}@{Link.parse(link).emulation().name}"
        renamed[place] = seconds
    return renamed


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
