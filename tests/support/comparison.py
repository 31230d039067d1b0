"""A small comparison whose results are made by hand: what reports of it must say is known."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqgrad.experiments.sweep.config import SweepConfig
from mqgrad.experiments.sweep.result import RunResult

PARTS = {"compute": 1.5, "encode": 0.1, "wire": 1.2, "decode": 0.1, "decide": 0.01}
SYSTEMS = ("fixed:32", "fixed:4", "fixed:2", "goodput", "powersgd:rank=1", "powersgd:rank=4", "fp16", "none")


def small_config(**changes: Any) -> SweepConfig:
    """One cell, each system twice."""
    chosen: dict[str, Any] = {
        "systems": ("fixed:32", "fixed:4"),
        "workloads": ("digits-mlp",),
        "links": ("emulated:100mbit",),
        "seeds": (1, 2),
        "iterations": 15,
    }
    return SweepConfig(**{**chosen, **changes})


def result(
    system: str, seed: int, losses: Sequence[float | None], *, step: float = 1.0, **changes: Any
) -> RunResult:
    """A run that was looked at every 5 iterations, which took ``step`` seconds."""
    fields: dict[str, Any] = {
        "workload": "digits-mlp",
        "optimizer": "own",
        "link": "emulated:100mbit",
        "system": system,
        "seed": seed,
        "outcome": "finished",
        "wall_seconds": 1.0,
        "mean_bits": 4.0,
        "wire_bytes": 2.0**20,
        "parts": PARTS,
        "heldout": {"loss": losses[-1] if losses else None, "accuracy": 0.5},
        "iterations": [5 * (i + 1) for i in range(len(losses))],
        "seconds": [step * (i + 1) for i in range(len(losses))],
        "losses": list(losses),
        "bits": [4] * len(losses),
    }
    return RunResult(**{**fields, **changes})


def write_results(folder: Path, config: SweepConfig, rows: Sequence[RunResult]) -> None:
    """The folder that a sweep leaves behind."""
    (folder / "config.json").write_text(json.dumps({"sweep": config.to_dict(), "revision": "abc"}))
    lines = (json.dumps(dataclasses.asdict(row)) + "\n" for row in rows)
    (folder / "results.jsonl").write_text("".join(lines))


ROWS = [
    # target 1.5: what both fp32 runs reach early
    result("fixed:32", 1, [3.0, 2.0, 1.5] + 4 * [1.0], gradient_norms_sq=[1.0, 4.0] * 3),
    result("fixed:32", 2, [3.0] + 6 * [1.5], gradient_norms_sq=[2.0, 2.0] * 3),
    result("fixed:4", 1, [1.5, 0.5, 0.25], step=0.75),  # 0.75 s against 3 s
    result("fixed:4", 2, [2.0, 1.5, 0.5], step=1.0),  # 2 s against 2 s
    result("fixed:2", 1, [1.0], step=0.5),
    result("fixed:2", 2, [2.0], step=0.5),  # never
    result("goodput", 1, [1.0], outcome="diverged", reason="training loss nan"),  # reached, then diverged
    result("goodput", 2, [], outcome="crashed", reason="failed", heldout={}, mean_bits=None, wire_bytes=None),
    result("powersgd:rank=1", 1, [1.0], step=2.0),
    result("powersgd:rank=1", 2, [1.0], step=2.0),
    result("powersgd:rank=4", 1, [1.0], step=0.1),
    result("powersgd:rank=4", 2, [9.0], step=0.1),  # never
    result("fp16", 1, [9.0], step=4.0),  # never
    result("fp16", 2, [1.0], step=1.0),
    result("none", 1, [0.1], step=0.5),  # 0.1 s an iteration
    result("none", 2, [0.1], step=0.5),
]
