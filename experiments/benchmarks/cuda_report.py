"""The file that the stages of cuda_codec.py fill in one after another: what was done is kept whatever comes next."""

import itertools
import json
import os
import statistics
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def update(path: Path, **entries: Any) -> None:
    """Replace entries of the report; it is whole at any time."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps({**read(path), **entries}, indent=1) + "\n")
    os.replace(unfinished, path)


def print_report(report: dict[str, Any]) -> None:
    for name, stage in report.get("stages", {}).items():
        print(f"{name.ljust(12)} {stage['outcome']} ({stage['seconds']:.0f} s)")
    for sizes, checks in report.get("checks", {}).items():
        for name, outcome in checks.items():
            print(f"{sizes} {name}: {outcome}")
    if report.get("rows"):
        _print_table(report)


def _print_table(report: dict[str, Any]) -> None:
    copies = [row["copy GB/s"] for row in report["rows"]]
    print(f"{report['card']}, {report['date']}, torch {report['torch']}, {report['elements']:,} elements")
    print(f"device-to-device copy {statistics.median(copies):.0f} GB/s; below, fractions of it by bits")
    rows = sorted(report["rows"], key=lambda row: (row["op"], row["bits"]))
    for op, of_op in itertools.groupby(rows, key=lambda row: row["op"]):
        fractions = (f"{row['bits']:g}: {row['GB/s'] / row['copy GB/s']:.2f}" for row in of_op)
        print(op.ljust(26) + "  ".join(fractions))
