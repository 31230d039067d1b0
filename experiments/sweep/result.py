"""What became of one run of a sweep: a row of results."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from mqgrad.widths import Width

from ..runs import PARTS, RunPoint, RunRecord
from ..time_to_target import LossCurve
from .axes import Cell, Run
from .run_server import RunRequest

REASON_CHARACTERS = 300
FAILED = ("crashed", "timed out")
"""Outcomes that may come out differently another time; a divergence is a result."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What became of one run; a line of ``results.jsonl``."""

    workload: str
    optimizer: str
    link: str
    system: str
    seed: int
    outcome: str
    """``finished``, ``diverged``, ``crashed`` or ``timed out``."""
    reason: str = ""
    """One line; empty if the run finished."""
    retried: str = ""
    """Why an earlier attempt failed, the first if there were several; empty if this one is the first."""
    started: str | None = None
    """Date and time, UTC, as ISO 8601 has it."""
    wall_seconds: float
    """Evaluations included, and the start of the processes in the first run that they carry out."""
    others_cores: float | None = None
    """Mean number of cores that other processes, and a virtual machine's host, kept busy meanwhile; None if
    unknown."""
    revision: str | None = None
    """Of the source that ran."""
    mean_bits: float | None = None
    wire_bytes: float | None = None
    """That one rank has sent, as accounted; a mean over the ranks."""
    interface_bytes: list[int] = dataclasses.field(default_factory=list)
    """That each host's interface has sent since training was seen to have begun, which takes some hundredths of a
    second: headers and evaluations included; empty where there is no lab, or the run was over before."""
    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the compressor reported of itself last."""
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of one rank by :data:`mqgrad.experiments.runs.PARTS`."""
    gradient_norms_sq: list[float | None] = dataclasses.field(default_factory=list)
    """‖ḡ‖² of the mean gradient at the decision before each point; None before the first, or where not finite.
    Earlier files have one per decision that a point followed."""
    heldout: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """Held-out figures at the end; None where not finite."""
    iterations: list[int] = dataclasses.field(default_factory=list)
    """The points of the run: here and in the next three, one entry a point."""
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Seconds of training, evaluations excluded."""
    losses: list[float | None] = dataclasses.field(default_factory=list)
    """Held-out loss; None where not finite."""
    bits: list[Width] = dataclasses.field(default_factory=list)

    @property
    def run(self) -> Run:
        return Run(self.workload, self.optimizer, self.link, self.system, self.seed)

    @property
    def cell(self) -> Cell:
        return self.run.cell

    @property
    def first_reason(self) -> str:
        """Why the first attempt failed."""
        return self.retried or self.reason

    @property
    def finished(self) -> bool:
        return self.outcome == "finished"

    @property
    def curve(self) -> LossCurve:
        """Of held-out loss."""
        return LossCurve(self.iterations, self.seconds, self.losses, self.finished)


class Ending(NamedTuple):
    """How a run's processes ended."""

    outcome: str
    """``ok``, ``crashed`` or ``timed out``."""
    reason: str


def result_of(run: Run, ending: Ending, request: RunRequest, **known: Any) -> RunResult:
    """The row of a run that ended so.

    Args:
        request: what ``mqgrad serve-runs`` was asked for; its record must be of that.
        known: further fields of the row.
    """
    if ending.outcome != "ok":
        return RunResult(**run._asdict(), outcome=ending.outcome, reason=ending.reason, **known)
    try:
        record = RunRecord.from_dict(json.loads(Path(request.record).read_text()))
        _check_record(record, request)
        final = record.final
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        reason = f"no record of a run: {error}"[:REASON_CHARACTERS]
        return RunResult(**run._asdict(), outcome="crashed", reason=reason, **known)
    diverged = record.outcome != "finished" or not math.isfinite(final.heldout["loss"])
    return RunResult(
        **run._asdict(),
        **known,
        outcome="diverged" if diverged else "finished",
        reason=_losses(final) if diverged else "",
        mean_bits=round(record.mean_bits, 4),
        wire_bytes=final.wire_bytes,
        figures={
            name: float(f"{value:.6g}") for name, value in final.figures.items() if math.isfinite(value)
        },
        parts={part: round(final.parts[part], 4) for part in PARTS if part in final.parts},
        gradient_norms_sq=_norms(record),
        heldout={name: _finite(value) for name, value in final.heldout.items()},
        iterations=[point.iteration for point in record.points],
        seconds=[round(point.elapsed_seconds, 4) for point in record.points],
        losses=[_finite(point.heldout["loss"]) for point in record.points],
        bits=[point.bits for point in record.points],
    )


def _check_record(record: RunRecord, request: RunRequest) -> None:
    """Raises ValueError if it is of another run than was asked for: a row of the wrong system would go unnoticed."""
    expected = RunRecord.of(request)
    for name in ("seed", "controller", "compressor", "method"):
        asked, told = getattr(expected, name), getattr(record, name)
        if told != asked:
            raise ValueError(f"that of another run, with {name} {told!r} in place of {asked!r}")


def _losses(point: RunPoint) -> str:
    heldout = point.heldout["loss"]
    return f"training loss {point.train_loss}, held-out loss {heldout} at iteration {point.iteration}"


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _norms(record: RunRecord) -> list[float | None]:
    return [_finite(point.gradient_norm_sq) or None for point in record.points]
