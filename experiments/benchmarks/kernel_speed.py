"""How fast the CPU kernels are with the instructions of lesser processors, beside libc's memmove.

    python experiments/benchmarks/kernel_speed.py --json kernel_speed.json      # ten minutes on one core

One thread encodes and decodes and adds 64 MiB of fp32, in buckets of 512: with stochastic rounding, and as the hook
does, through a residual, rotated at 1 to 3 bits and rounded to nearest at 4 and 8. The kernels are compiled once (g++
12 or later, x86-64) and linked into programs that take this processor for what it is, for one without AVX-512, and
for one with SSE2 alone. A call runs each program once, and a program runs each kernel once a round. On a machine with
other work the fastest round of each is what counts; the file also has medians over rounds.

Printed is what the fastest rounds did, from the lowest call to the highest.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import script

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
import instruction_sets

from mqgrad.experiments.machine_load import OthersLoad

HARNESS = Path(__file__).with_suffix(".cpp")


class Figures(NamedTuple):
    """One kernel in one call. Speeds count the bytes of fp32, and no others."""

    instruction_set: str
    kernel: str
    """"copy" is memmove, "read" a sum of the floats; the others have their bits in their name."""
    call: int
    best_gb_per_s: float
    """Of the fastest round."""
    best_to_copy: float
    """That, over memmove's in its fastest round."""
    best_to_read: float
    median_gb_per_s: float
    median_to_copy: float
    """Median over rounds of the ratio within a round."""
    median_to_read: float


def figures_of(measured: Mapping[str, Any], call: int) -> list[Figures]:
    """Of what one run of a program printed: its seconds by kernel and round."""
    all_seconds, gigabytes = measured["seconds"], measured["bytes"] / 1e9
    copy, read = all_seconds["copy"], all_seconds["read"]
    return [
        Figures(
            measured["instruction_set"],
            kernel,
            call,
            best_gb_per_s=round(gigabytes / min(seconds), 3),
            best_to_copy=round(min(copy) / min(seconds), 4),
            best_to_read=round(min(read) / min(seconds), 4),
            median_gb_per_s=round(gigabytes / statistics.median(seconds), 3),
            median_to_copy=round(median_ratio(copy, seconds), 4),
            median_to_read=round(median_ratio(read, seconds), 4),
        )
        for kernel, seconds in all_seconds.items()
    ]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def measure(programs: Mapping[str, Path], calls: int, rounds: int) -> list[Figures]:
    figures = []
    for call in range(calls):
        for program in programs.values():
            run = subprocess.run(
                [program, str(rounds)], check=True, capture_output=True, text=True, timeout=600
            )
            figures += figures_of(json.loads(run.stdout), call)
    return figures


def print_table(figures: Sequence[Figures]) -> None:
    for instruction_set, kernel in dict.fromkeys(each[:2] for each in figures):
        rows = [each for each in figures if each[:2] == (instruction_set, kernel)]
        speed = lowest_to_highest([each.best_gb_per_s for each in rows], ".1f")
        to_copy = lowest_to_highest([each.best_to_copy for each in rows], ".2f")
        to_read = lowest_to_highest([each.best_to_read for each in rows], ".2f")
        print(
            f"{instruction_set:<9} {kernel:<17} {speed:>9} GB/s, {to_copy} of memmove, {to_read} of reading"
        )


def lowest_to_highest(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}}–{max(values):{form}}"


def compiler_version() -> str:
    compiler = os.environ.get("CXX", "g++")
    return subprocess.check_output([compiler, "--version"], text=True).splitlines()[0]


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--json", type=script.output_file, help="write every call's figures to this file")
    parser.add_argument("--calls", type=script.count, default=9)
    parser.add_argument("--rounds", type=script.count, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            programs = instruction_sets.build([HARNESS], Path(scratch), [f"-I{instruction_sets.FOLDER}"])
        except instruction_sets.Unavailable as reason:
            sys.exit(str(reason))
        others = OthersLoad()
        figures = measure(programs, options.calls, options.rounds)
        others_cores = others.cores()
    print_table(figures)
    if options.json is not None:
        report = {
            "compiler": compiler_version(),
            "others_cores": others_cores,
            "rounds": options.rounds,
            "figures": [each._asdict() for each in figures],
        }
        script.write_report(options.json, report)


if __name__ == "__main__":
    main()
