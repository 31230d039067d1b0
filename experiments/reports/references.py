"""What times are compared with: fp32, fp16, PowerSGD at its best rank, the best fixed width, goodput, the ideal."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.trainers.methods import DEFAULT_METHOD

from ..estimates import Timing
from ..sweep.axes import NO_EXCHANGE, System
from ..sweep.result import RunResult


class Reference(NamedTuple):
    """One of them in one cell."""

    system: str
    timing: Timing | None
    """Of the runs that finished; None if none did."""
    failed: int = 0
    """Runs that did not finish: nothing is compared with the reference on their seeds."""


def references(
    runs: Mapping[str, Sequence[RunResult]], target: float | None, fp32: str
) -> dict[str, Reference]:
    """The references that a cell has runs of.

    - ``fp32``: PyTorch's DDP, or in sweeps that lack it our hook at 32 bits;
    - ``fp16`` and ``PowerSGD``: the best in hindsight of PyTorch's own hook and our compressor, at compared ranks;
    - ``oracle``: the best of the compared fixed widths, of averages in every iteration by the default topology;
    - ``goodput``: the rule that learned policies begin as an imitation of, the best of those compared, likewise;
    - ``ideal``: as many iterations as fp32 needs to the target, each as short as those that send nothing, or in
      sweeps that lack such, no gradient. No method passes it that takes fp32's steps.

    Systems that change settings of the workload are none of these.

    A reference with a run that is missing or did not finish stands for its other seeds, and is chosen only if no
    candidate has more runs.

    Args:
        runs: by system.
        target: held-out loss.
        fp32: the system that is fp32 here.
    """
    chosen: dict[str, Callable[[str], bool]] = {
        "fp32": lambda name: name == fp32,
        "fp16": lambda name: _is_peer(name, "fp16"),
        "PowerSGD": lambda name: _is_peer(name, "powersgd"),
        "oracle": lambda name: _is_on_our_code(name, "fixed"),
        "goodput": lambda name: _is_on_our_code(name, "goodput"),
    }
    found = {}
    for reference, is_one in chosen.items():
        candidates = {name: own for name, own in runs.items() if is_one(name)}
        if candidates:
            best = min(candidates, key=lambda name: _badness(candidates[name], target))
            found[reference] = _reference(best, candidates[best], target)
    silent = next((name for name in NO_EXCHANGE if any(run.iterations for run in runs.get(name, ()))), None)
    if silent is not None and fp32 in runs:
        found["ideal"] = Reference(silent, _ideal(runs[fp32], runs[silent], target))
    return found


def timing_of(runs: Sequence[RunResult], target: float | None) -> Timing | None:
    """Of the runs that finished; None if none did, or there is no target."""
    finished = [run for run in runs if run.finished]
    if target is None or not finished:
        return None
    times = {run.seed: run.curve.seconds_to(target) for run in finished}
    spent = {run.seed: run.seconds[-1] for run in finished}
    seconds = {seed: spent[seed] if time is None else time for seed, time in times.items()}
    return Timing(seconds, {seed for seed, time in times.items() if time is None})


def _reference(name: str, runs: Sequence[RunResult], target: float | None) -> Reference:
    return Reference(name, timing_of(runs, target), sum(not run.finished for run in runs))


def _is_peer(name: str, peer: str) -> bool:
    """Whether it is PyTorch's own hook of that name, or our compressor."""
    system = System.parse(name)
    if system.settings:  # another training than the one that is compared
        return False
    return system.torch_hook == peer or (
        system.controller is None
        and system.compressor.partition(":")[0] == peer
        and system.method == DEFAULT_METHOD
    )


def _is_on_our_code(name: str, controller: str) -> bool:
    system = System.parse(name)
    return (
        not system.settings
        and system.compressor == DEFAULT_COMPRESSOR
        and (system.controller or "").partition(":")[0] == controller
        and system.method == DEFAULT_METHOD
    )


def _badness(runs: Sequence[RunResult], target: float | None) -> tuple[int, bool, float]:
    """Sort key, the best first: runs that finished, whether the target was missed, seconds."""
    timing = timing_of(runs, target)
    missed, seconds = (True, 0.0) if timing is None else (bool(timing.missed), timing.mean)
    return -sum(run.finished for run in runs), missed, seconds


def _ideal(dense: Sequence[RunResult], silent: Sequence[RunResult], target: float | None) -> Timing | None:
    pace = [run.seconds[-1] / run.iterations[-1] for run in silent if run.iterations]
    finished = [run for run in dense if run.finished]
    if target is None or not pace or not finished:
        return None
    iterations = {run.seed: run.curve.iterations_to(target) for run in finished}
    seconds = {seed: n * statistics.fmean(pace) for seed, n in iterations.items() if n is not None}
    return Timing(seconds) if seconds else None
