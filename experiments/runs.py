"""One training run under a controller, recorded: the unit of every comparison."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mqgrad.compressors import DEFAULT_COMPRESSOR, make_compressor
from mqgrad.controllers import make_controller
from mqgrad.files import replace_file
from mqgrad.trainers.clusters.cluster import Cluster
from mqgrad.trainers.link import LinkEmulation, parse_emulation
from mqgrad.trainers.methods import DEFAULT_METHOD
from mqgrad.widths import Width, format_width

from .time_to_target import LossCurve

PARTS = ("compute", "encode", "wire", "decode", "decide")
"""What the seconds of an iteration go to."""

# Iterations between two points of a run: to pause for one costs the next iteration a millisecond.
_LEAST_APART = 2
_SHARE_APART = 20  # two points are a 20th of the iterations so far apart


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """What one run is: the arguments of :func:`run_training`."""

    seed: int
    """Of initial weights and data order, and of a controller that draws."""
    controller: str | None = None
    """As :func:`mqgrad.make_controller` takes it; None where the method has no width."""
    compressor: str = DEFAULT_COMPRESSOR
    """As :func:`mqgrad.make_compressor` takes it."""
    method: str = DEFAULT_METHOD
    """As :func:`mqgrad.trainers.methods.make_method` takes it."""
    link: str | None = None
    """Emulated link, as :func:`parse_emulation` reads it; one that switches begins with the run."""
    link_latency_ms: float = 0.0
    iterations: int | None = None
    budget_seconds: float | None = None

    def emulation(self) -> LinkEmulation | None:
        """The emulated link; None where ranks send over what joins them."""
        return None if self.link is None else parse_emulation(self.link, self.link_latency_ms)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunPoint:
    """Where a run stood after some iterations."""

    iteration: int
    elapsed_seconds: float
    """Seconds of training so far; evaluations do not count."""
    bits: Width
    train_loss: float
    heldout: dict[str, float]
    """Held-out figures, ``loss`` among them."""
    wire_bytes: float
    """Bytes one rank has sent so far."""
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of one rank so far by ``PARTS``. All but ``compute`` are the communication thread's, and overlap it."""
    gradient_norm_sq: float = 0.0
    """‖ḡ‖² of the mean gradient when it was measured last; 0 if it never was."""
    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the compressor reports of itself; see ``Compressor.figures``."""


@dataclasses.dataclass(kw_only=True, slots=True)
class RunRecord:
    """A run and how it ended."""

    controller: str
    seed: int
    compressor: str = DEFAULT_COMPRESSOR
    method: str = DEFAULT_METHOD
    link: str = ""
    """An emulated one, which says so; empty where ranks sent over what joined them."""
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of ``mqgrad run``: its command, the date, versions and machine."""
    points: list[RunPoint] = dataclasses.field(default_factory=list)
    outcome: str = "running"
    """``finished`` or ``diverged``; ``running`` where something cut it off."""
    bit_iterations: float = 0
    """Sum of the bit width over iterations."""
    trials: list["RunRecord"] = dataclasses.field(default_factory=list)
    """Of the oracle, which is known in hindsight: the runs of all fixed widths, of which this one is the best."""

    @classmethod
    def of(cls, spec: RunSpec) -> "RunRecord":
        """The record of a run that begins."""
        return cls(
            controller=spec.controller or "",
            seed=spec.seed,
            compressor=spec.compressor,
            method=spec.method,
            link=str(spec.emulation() or ""),
        )

    def write(self, path: Path) -> None:
        """Write it as JSON, in which what is not finite is null."""
        replace_file(path, json.dumps(_with_nulls(self.to_dict()), indent=1, allow_nan=False) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "RunRecord":
        """The record that :meth:`to_dict` was called on; what is not finite is NaN where it was written as null."""
        points = [RunPoint(**_without_nulls(point)) for point in fields["points"]]
        trials = [cls.from_dict(trial) for trial in fields.get("trials", [])]
        return cls(**{**fields, "points": points, "trials": trials})

    @property
    def final(self) -> RunPoint:
        return self.points[-1]

    @property
    def mean_bits(self) -> float:
        """Mean bit width over iterations."""
        return self.bit_iterations / max(self.final.iteration, 1)

    @property
    def trial_seconds(self) -> float:
        """Seconds of training in all trials."""
        return sum(trial.final.elapsed_seconds for trial in self.trials)

    @property
    def curve(self) -> LossCurve:
        """Of held-out loss."""
        losses = [point.heldout["loss"] for point in self.points]
        return LossCurve(
            [point.iteration for point in self.points],
            [point.elapsed_seconds for point in self.points],
            [loss if math.isfinite(loss) else None for loss in losses],
            self.outcome == "finished",
        )


def _with_nulls(value: Any) -> Any:
    """A value of JSON, whose numbers are all finite."""
    if isinstance(value, dict):
        return {name: _with_nulls(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_nulls(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items()}
    return math.nan if value is None else value


def default_controller(compressor: str) -> str:
    """``fixed:4``, or the only width of a compressor that offers no choice."""
    widths = make_compressor(compressor).widths
    return f"fixed:{format_width(widths[0])}" if len(widths) == 1 else "fixed:4"


def run_training(
    cluster: Cluster,
    spec: RunSpec,
    *,
    on_start: Callable[[RunRecord], None] = lambda record: None,
    on_point: Callable[[RunPoint], None] = lambda point: None,
    on_clock: Callable[[float, bool], None] = lambda seconds, goes_on: None,
) -> RunRecord:
    """Train until the iterations or the seconds are spent.

    A point of the record, with an evaluation, is taken after every 2 iterations, from the 60th on after every 5 %
    more. So it is known to about 5 % when a loss was reached, and all runs are looked at after the same iterations:
    within an epoch the held-out loss of every run of a seed goes up and down by a third, all systems alike, so that
    runs looked at elsewhere differ by chance. Two exceptions: no point is so late that, at the slowest pace so far,
    that of the first point apart, it would lie beyond the budget; and methods that average replicas every some
    iterations are looked at, and end, where they have just done so.

    Args:
        on_start: called with the empty record when training begins.
        on_point: called with every new point, for progress.
        on_clock: called with the seconds of training so far, and whether it goes on now or pauses for an evaluation.

    Raises:
        ValueError: if neither iterations nor seconds bound the run.
        WorkerError: if a rank dies or hangs.
    """
    if spec.iterations is None and spec.budget_seconds is None:
        raise ValueError("nothing ends the run: give iterations, budget_seconds or both")
    # An object, not the name: a policy that observes its progress needs to know how long this run is.
    decides = (
        None if spec.controller is None else make_controller(spec.controller, spec.budget_seconds, spec.seed)
    )
    cluster.reset(
        spec.seed,
        link=spec.emulation(),
        controller=decides,
        compressor=spec.compressor,
        method=spec.method,
    )
    record = RunRecord.of(spec)
    on_start(record)
    for point, bit_iterations in _points(cluster, spec, on_clock):
        record.points.append(point)
        record.bit_iterations += bit_iterations
        on_point(point)
        if not math.isfinite(point.train_loss):
            record.outcome = "diverged"
            return record
        if spec.budget_seconds is not None and point.elapsed_seconds >= spec.budget_seconds:
            break
    record.outcome = "finished"
    return record


def _heldout(cluster: Cluster) -> dict[str, float]:
    figures = cluster.evaluate()
    if not isinstance(figures, Mapping) or "loss" not in figures:
        name = cluster.workload.name
        raise ValueError(f"evaluate() of workload {name!r} must return the held-out 'loss', not {figures!r}")
    return {figure: _as_float(figure, value, cluster) for figure, value in figures.items()}


def _as_float(figure: str, value: Any, cluster: Cluster) -> float:
    """Scripts return tensors and NumPy's numbers, too, which no record could hold."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"evaluate() of workload {cluster.workload.name!r} returned {figure!r} as {value!r}, which is no number: "
            f"{error}"
        ) from None


def _points(
    cluster: Cluster, spec: RunSpec, on_clock: Callable[[float, bool], None]
) -> Iterator[tuple[RunPoint, float]]:
    iterations, budget_seconds = spec.iterations or math.inf, spec.budget_seconds
    elapsed = wire_bytes = slowest = 0.0
    parts = dict.fromkeys(PARTS, 0.0)
    chunk, done = _LEAST_APART, 0
    while done < iterations:
        on_clock(elapsed, True)
        statistics = cluster.run(int(min(chunk, iterations - done)), to_exchange=True)
        count = statistics.iteration - done
        done = statistics.iteration
        elapsed += statistics.seconds
        on_clock(elapsed, False)
        chunk = max(_LEAST_APART, done // _SHARE_APART)
        if budget_seconds is not None and done > count:
            slowest = max(slowest, statistics.seconds / count)
            chunk = max(1, min(chunk, math.floor((budget_seconds - elapsed) / slowest)))
        wire_bytes += statistics.wire_bytes * count
        parts = {part: parts[part] + getattr(statistics, f"{part}_seconds") * count for part in PARTS}
        point = RunPoint(
            iteration=done,
            elapsed_seconds=elapsed,
            bits=statistics.bits,
            train_loss=statistics.loss,
            heldout=_heldout(cluster),
            wire_bytes=wire_bytes,
            parts=parts,
            gradient_norm_sq=statistics.mean_norm_sq,
            figures=statistics.figures,
        )
        yield point, statistics.mean_bits * count
