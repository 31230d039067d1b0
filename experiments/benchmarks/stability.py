"""Is training stable at every width of a compressor, with momentum SGD and with Adam? *Simulated*.

    python experiments/benchmarks/stability.py --json stability.json           # ten minutes on two cores
    python experiments/benchmarks/stability.py --widths 1/64,1,4 --iterations 100 --seeds 1
    python experiments/benchmarks/stability.py --workload bytes-gpt --set width=64 --set num_layers=2 --iterations 800
    python experiments/benchmarks/stability.py --widths '1,4,1>4@150,4>1@150'  # 1 bit, and 4 from iteration 150 on
    python experiments/benchmarks/stability.py --compressors 'quantized quantized:feedback_gain=1' --widths 1,4
    python experiments/benchmarks/stability.py --methods 'ddp ddp:frozen_every=16' --optimizers adam --widths 1,32 \
        --learning-rates 0.002 0.004 0.008

Trains on four virtual ranks, every run at one width, or one that changes once, with the workload's own learning rate
unless others are given. Printed is the training loss of the last 20 iterations: mean over seeds (least–most),
and how many runs diverged: some loss is not finite, or the last are no better than the first. At 32 bits nothing is
coded. The file has the losses on the way, too.
"""

import concurrent.futures
import itertools
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import script
from rich.console import Console
from rich.progress import track

from mqgrad.compressors import DEFAULT_COMPRESSOR
from mqgrad.experiments.settings import parse_settings
from mqgrad.trainers import ModelClock, Simulated
from mqgrad.trainers.methods import DEFAULT_METHOD
from mqgrad.widths import WIDTHS, Width, format_width, parse_width

WORLD_SIZE = 4
OPTIMIZERS = {"sgd": "momentum SGD", "adam": "Adam"}
BLOCK, LAST = 10, 20  # iterations
CLOCK = ModelClock(compute_seconds=0.01, mbit_per_s=100)  # of no consequence: nothing here depends on time


class Plan(NamedTuple):
    """The widths of a run."""

    bits: Width
    then: Width | None = None
    """Width from iteration ``since`` on; None: as before."""
    since: int = 0

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """``"4"``, or ``"1>4@400"``.

        Raises:
            ValueError: for another form, or an unknown width.
        """
        first, change, rest = text.partition(">")
        if not change:
            return cls(parse_width(first))
        then, _, since = rest.partition("@")
        if not since.isdecimal():
            raise ValueError(
                f"{text!r} must be a width, or of the form 1>4@400: 4 bits from iteration 400 on"
            )
        return cls(parse_width(first), parse_width(then), int(since))

    def __str__(self) -> str:
        first = format_width(self.bits)
        return first if self.then is None else f"{first}>{format_width(self.then)}@{self.since}"


class Job(NamedTuple):
    """One run to be carried out."""

    optimizer: str
    plan: Plan
    seed: int
    iterations: int
    workload: str = "digits-cnn"
    settings: tuple[tuple[str, Any], ...] = ()
    """Of the workload."""
    compressor: str = DEFAULT_COMPRESSOR
    method: str = DEFAULT_METHOD
    learning_rate: float | None = None
    """None: the workload's own."""


class Run(NamedTuple):
    """What came of it. Losses are means over ranks, in nats."""

    optimizer: str
    plan: Plan
    seed: int
    losses: list[float]
    """Means of ten iterations each."""
    last_loss: float
    """Mean of the last 20 iterations; infinite where that is no number."""
    compressor: str = DEFAULT_COMPRESSOR
    method: str = DEFAULT_METHOD
    learning_rate: float | None = None

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.losses)) or self.last_loss >= self.losses[0]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: None for what is not finite."""
        numbers = {"losses": [_finite(loss) for loss in self.losses], "last_loss": _finite(self.last_loss)}
        fields = {name: value for name, value in self._asdict().items() if name != "plan"}
        return {**self.plan._asdict(), **fields, **numbers, "diverged": self.diverged}


def train(job: Job) -> Run:
    settings = {"optimizer": job.optimizer, **dict(job.settings)}
    if job.learning_rate is not None:
        settings["learning_rate"] = job.learning_rate
    with Simulated(job.workload, settings, num_workers=WORLD_SIZE, clock=CLOCK) as cluster:
        cluster.reset(job.seed, compressor=job.compressor, method=job.method)
        losses = _losses(cluster, job.plan, job.iterations)
    blocks = [statistics.fmean(losses[i : i + BLOCK]) for i in range(0, len(losses), BLOCK)]
    last = statistics.fmean(losses[-LAST:])
    last = last if math.isfinite(last) else math.inf
    return Run(job.optimizer, job.plan, job.seed, blocks, last, job.compressor, job.method, job.learning_rate)


def _losses(cluster: Simulated, plan: Plan, iterations: int) -> tuple[float, ...]:
    if plan.then is None:
        return cluster.run(iterations, bits=plan.bits).losses
    before = cluster.run(plan.since, bits=plan.bits).losses
    return before + cluster.run(iterations - plan.since, bits=plan.then).losses


def train_all(jobs: Sequence[Job], processes: int) -> list[Run]:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        runs = pool.map(train, jobs)
        return list(track(runs, "runs", total=len(jobs), console=Console(stderr=True)))


def print_table(runs: Sequence[Run]) -> None:
    """One row a plan, compressor, method and learning rate, one column an optimizer, in Markdown."""
    optimizers = dict.fromkeys(run.optimizer for run in runs)
    rows = []
    for way in dict.fromkeys(map(_way, runs)):
        own = [run for run in runs if _way(run) == way]
        cells = (_cell([run for run in own if run.optimizer == key]) for key in optimizers)
        rate = "own" if way[3] is None else f"{way[3]:g}"
        rows.append((str(way[0]), *way[1:3], rate, *cells))
    header = ("bits", "compressor", "method", "learning rate", *(OPTIMIZERS[key] for key in optimizers))
    script.print_markdown(header, rows)


def _way(run: Run) -> tuple[Plan, str, str, float | None]:
    return run.plan, run.compressor, run.method, run.learning_rate


def _cell(runs: Sequence[Run]) -> str:
    losses, diverged = [run.last_loss for run in runs], sum(run.diverged for run in runs)
    figures = f"{statistics.fmean(losses):.3f} ({min(losses):.3f}–{max(losses):.3f})"
    return f"{figures}, {diverged} of {len(runs)} diverged" if diverged else figures


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--json", type=script.output_file, help="write every run to this file")
    parser.add_argument("--compressors", default=DEFAULT_COMPRESSOR, help="one or more, joined by spaces")
    parser.add_argument("--methods", default=DEFAULT_METHOD, help="one or more, joined by spaces")
    parser.add_argument("--optimizers", nargs="+", choices=tuple(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--learning-rates", nargs="+", type=float, default=[None], metavar="RATE")
    parser.add_argument(
        "--widths",
        type=script.listed(Plan.parse),
        default=",".join(map(format_width, WIDTHS)),
        help="joined by commas; 1>4@400 is 1 bit, and 4 from iteration 400 on",
    )
    parser.add_argument("--iterations", type=script.count, default=300)
    parser.add_argument("--seeds", type=script.count, default=3, help="how many")
    parser.add_argument("--workload", default="digits-cnn")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, a setting of the workload")
    parser.add_argument("--processes", type=script.count, default=2, help="runs at a time, one core each")
    options = parser.parse_args()
    sys.path.append(os.getcwd())  # where a workload of one's own may lie
    try:
        settings = parse_settings(options.set)
    except ValueError as error:
        parser.error(str(error))
    for plan in options.widths:
        if plan.then is not None and not 0 < plan.since < options.iterations:
            parser.error(f"--widths {plan}: the width must change within the {options.iterations} iterations")
    jobs = [
        Job(optimizer, plan, seed, options.iterations, options.workload, tuple(settings.items()), *way)
        for plan in options.widths
        for way in itertools.product(
            options.compressors.split(), options.methods.split(), options.learning_rates
        )
        for optimizer in options.optimizers
        for seed in range(options.seeds)
    ]
    runs = train_all(jobs, options.processes)
    print_table(runs)
    if options.json is not None:
        figures = {
            "workload": options.workload,
            "settings": settings,
            "world_size": WORLD_SIZE,
            "iterations": options.iterations,
            "runs": [run.to_dict() for run in runs],
        }
        script.write_report(options.json, figures)


if __name__ == "__main__":
    main()
