"""What times are compared with: fp32, fp16, PowerSGD at its best rank, the best fixed width, and the ideal."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mqgrad.compressors import DEFAULT_COMPRESSOR

from .estimates import Timing
from .sweep_grid import SILENT, System
from .sweep_result import CellResult


class Reference(NamedTuple):
    """One of them in one group of runs."""

    system: str
    timing: Timing | None
    """None if some run of it did not finish."""


def references(
    runs: Mapping[str, Sequence[CellResult]],
    timings: Mapping[str, Timing | None],
    target: float | None,
    fp32: str,
) -> dict[str, Reference]:
    """The references that a group has runs of.

    - ``fp32``: PyTorch's DDP, or in sweeps that lack it our hook at 32 bits; ``fp16``: half the bytes;
    - ``PowerSGD``: the best of its compared ranks in hindsight; ``oracle``: the best of the compared fixed widths;
    - ``ideal``: as many iterations as fp32 needs to the target, each as short as those that send no gradient. No
      method passes it that takes fp32's steps.

    Args:
        runs: by system.
        timings: by system, None where a run did not finish.
        target: held-out loss.
        fp32: the system that is fp32 here.
    """
    chosen: dict[str, Callable[[str], bool]] = {
        "fp32": lambda name: name == fp32,
        "fp16": lambda name: name == "fp16",
        "PowerSGD": lambda name: name.partition(":")[0] == "powersgd",
        "oracle": _is_fixed,
    }
    found = {}
    for reference, is_one in chosen.items():
        names = [name for name in timings if is_one(name)]
        if names:
            best = _best(names, timings)
            found[reference] = Reference(best, timings[best])
    if SILENT in runs and fp32 in runs:
        found["ideal"] = Reference(SILENT, _ideal(runs[fp32], runs[SILENT], target))
    return found


def _is_fixed(name: str) -> bool:
    system = System.parse(name)
    return system.compressor == DEFAULT_COMPRESSOR and (system.controller or "").partition(":")[0] == "fixed"


def _best(names: Sequence[str], timings: Mapping[str, Timing | None]) -> str:
    """The one that reached the target soonest; of those that missed it, the one that was given the least."""

    def badness(name: str) -> tuple[int, float]:
        timing = timings[name]
        return (2, 0.0) if timing is None else (not timing.reached, timing.mean)

    return min(names, key=badness)


def _ideal(dense: Sequence[CellResult], silent: Sequence[CellResult], target: float | None) -> Timing | None:
    pace = [run.seconds[-1] / run.iterations[-1] for run in silent if run.iterations]
    if target is None or not pace or not all(run.finished for run in dense):
        return None
    iterations = {run.seed: run.iterations_to(target) for run in dense}
    seconds = {seed: n * statistics.fmean(pace) for seed, n in iterations.items() if n is not None}
    return Timing(seconds, len(seconds) == len(dense))
