"""Sweeps whose runs are made up."""

import signal
import sys
from pathlib import Path
from typing import Any

from mqgrad.experiments.sweep.config import SweepConfig
from mqgrad.experiments.sweep.folder import load_results, open_sweep
from mqgrad.experiments.sweep.result import RunResult

SIGNALS = {"fixed:6": int(signal.SIGINT), "fixed:8": int(signal.SIGTERM)}
"""What ends a sweep while the runs of these controllers are under way."""

# Stands in for `mqgrad serve-runs`: what it does depends on the controller it is asked for.
FAKE_SERVER = """
import json, os, pathlib, sys, time
controller = ""
for line in sys.stdin:
    if controller == "fixed:7":
        sys.exit("error: that run cannot be closed")
    request = json.loads(line)
    controller, seed = request["controller"], request["seed"]
    with open({calls!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{controller}}\\n")
    if controller == "fixed:1":
        sys.exit("error: out of luck")
    if controller == "fixed:2":
        time.sleep(60)
    if controller == "fixed:3":
        sys.exit(0)  # without a record
    if controller in {signals!r}:  # at a moment that is known
        os.kill(os.getppid(), {signals!r}[controller])
        time.sleep(60)
    loss = [2.0, 1.0, float("nan") if controller == "fixed:5" else 0.5]
    points = [
        dict(iteration=5 * i + 5, elapsed_seconds=i + 1.0, bits=4, train_loss=loss[i], heldout=dict(loss=loss[i]),
             wire_bytes=2.0**20 * i)
        for i in range(3)
    ]
    outcome = "diverged" if controller == "fixed:5" else "finished"
    record = dict(controller=controller, seed=seed, points=points, outcome=outcome, bit_iterations=60)
    partial = pathlib.Path(request["record"] + ".partial")
    partial.write_text(json.dumps(record))
    partial.replace(request["record"])
"""


def fake_program(folder: Path) -> tuple[list[str], Path]:
    """A command that serves runs, and the file to which it adds a line of process and controller for each."""
    calls, script = folder / "calls", folder / "fake.py"
    script.write_text(FAKE_SERVER.format(calls=str(calls), signals=SIGNALS))
    calls.touch()
    return [sys.executable, str(script)], calls


def run_fake(folder: Path, config: SweepConfig, **options: Any) -> list[RunResult]:
    """Run a sweep to its end, in ``out`` within the folder."""
    program, _ = fake_program(folder)
    with open_sweep(folder / "out", config, program=program) as sweep:
        sweep.run(**options)
    return load_results(folder / "out")
