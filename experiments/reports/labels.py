"""What reports call systems, in which order of families, and how plots draw them."""

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.controllers.registry import is_policy
from mqgrad.trainers.methods import DDP, has_width, make_method

from ..sweep.axes import FP32, HOOKED_FP32, System, exchanges_nothing
from .cells import CellSummary

MOST_LINES = 9
"""As many systems as one plot over time has room for."""

_POLICY = "policy "
_LONGEST = 32  # characters of a label in a plot
# as many of each as a plot has lines
_WARM = (
    *("tab:red", "tab:orange", "tab:purple", "tab:pink", "tab:brown", "tab:olive"),
    *("gold", "magenta", "maroon"),
)
_COLD = (
    *("tab:cyan", "tab:green", "slategrey", "yellowgreen", "darkviolet", "teal"),
    *("navy", "steelblue", "mediumaquamarine"),
)
_FAMILIES = {
    "fixed": "fixed widths",
    "rule": "rules that set the width",
    "powersgd": "other codes",
    "compressor": "other codes",
    "rounds": "codes in rounds of local iterations",
    "frozen": "codes, Adam's second moment frozen",
    "method": "other methods of training",
}
_REFERENCES = "policy, fp32, fp16"


def system_label(system: str) -> str:
    """What tables and legends call a system."""
    if system in (FP32, HOOKED_FP32):
        return f"fp32 ({system})"
    if exchanges_nothing(system):
        return f"{system} (sends no gradient)"
    controller = System.parse(system).controller
    if controller is None or not is_policy(controller):
        return system
    return system.replace(controller, f"{_POLICY}{controller}", 1)


def plot_label(system: str) -> str:
    """The same for plots."""
    return _without_formulas(system_label(system))


def short_labels(systems: Sequence[str]) -> dict[str, str]:
    """The same, for the axes of plots: with at most 32 characters where those tell a system from the others."""
    short = {name: _shortened(system_label(name)) for name in systems}
    times = collections.Counter(short.values())
    return {
        name: plot_label(name) if times[label] > 1 else _without_formulas(label)
        for name, label in short.items()
    }


def _without_formulas(label: str) -> str:
    """For matplotlib, to which the dollars of a policy's path would begin and end one."""
    return label.replace("$", r"\$")


def _shortened(label: str) -> str:
    """Without its middle: lists of arguments differ at their end, too, and paths nowhere else."""
    if len(label) <= _LONGEST:
        return label
    begin = len(_POLICY) if label.startswith(_POLICY) else _LONGEST // 2
    return f"{label[:begin]}…{label[begin + 1 - _LONGEST :]}"


def is_marked(system: str) -> bool:
    """Whether reports emphasize it: policies, and fp32, which all is compared with."""
    return system in (FP32, HOOKED_FP32) or has_policy(system)


def has_policy(system: str) -> bool:
    """Whether a policy decides in it."""
    return is_policy(System.parse(system).controller or "")


def system_styles(systems: Sequence[str]) -> dict[str, dict[str, Any]]:
    """fp32 black, fixed widths dashed from dark to bright, compressors dotted, what adapts thick in warm colours;
    whatever order the systems come in, so that plots of several cells draw the same ones alike."""
    named = sorted(systems)
    fixed = [name for name in named if name.startswith("fixed:") and name != HOOKED_FP32]
    alone = [name for name in named if System.parse(name).controller is None and name != FP32]
    adaptive = [name for name in named if name not in (*fixed, *alone, FP32, HOOKED_FP32)]
    adaptive.sort(key=lambda name: not is_marked(name))  # policies are red, as in plot_losses
    styles: dict[str, dict[str, Any]] = {
        FP32: {"color": "black", "linewidth": 1.5},
        HOOKED_FP32: {"color": "dimgrey", "linewidth": 1.5},
    }
    for names, colours, line in (
        (
            fixed,
            colormaps["winter"](np.linspace(0.1, 0.95, max(len(fixed), 1))),
            {"linewidth": 1.2, "linestyle": "--"},
        ),
        (alone, itertools.cycle(_COLD), {"linewidth": 1.8, "linestyle": ":"}),
        (adaptive, itertools.cycle(_WARM), {"linewidth": 2.2}),
    ):
        styles |= {name: {"color": colour, **line} for name, colour in zip(names, colours, strict=False)}
    return {name: styles[name] for name in systems}


def kind_of(system: str) -> str:
    """What a system competes as; of each kind, the plots show the best."""
    parsed = System.parse(system)
    controller, compressor, method, _ = parsed
    if system in (FP32, HOOKED_FP32) or exchanges_nothing(system) or is_policy(controller or ""):
        return system
    if not has_width(method):
        return parsed.torch_hook or "method"
    made = make_method(method)
    if isinstance(made, DDP) and (made.is_local or made.second_moment is not None):
        return "rounds" if made.is_local else "frozen"
    if controller is not None and not controller.startswith("fixed:"):
        return "rule"
    if compressor != DEFAULT_COMPRESSOR:
        name = compressor.partition(":")[0]
        return name if name in ("fp16", "powersgd") else "compressor"
    return "fixed"


def families(systems: Sequence[str]) -> dict[str, list[str]]:
    """The systems by family, without those that send no gradient; within a family in the given order."""
    found: dict[str, list[str]] = {name: [] for name in (_REFERENCES, *_FAMILIES.values())}
    for system in systems:
        if not exchanges_nothing(system):
            found[_FAMILIES.get(kind_of(system), _REFERENCES)].append(system)
    return {name: members for name, members in found.items() if members}


def shown_systems(cell: CellSummary) -> list[str]:
    """The systems that a plot of a cell has room for: all of a few, of many the fastest of each kind."""
    names = [summary.system for summary in cell.systems]  # the fastest first
    if len(names) <= MOST_LINES:
        return names
    best: dict[str, str] = {}
    for name in names:
        best.setdefault(kind_of(name), name)
    return list(best.values())
