"""Two systems of a comparison beside each other: times to the target, seed by seed, where reports name few.

    python experiments/benchmarks/paired_times.py experiments/results/2026-11-27-main --reference fixed:1 default

Printed are geometric means of a system's time ÷ the reference's of the same seed, with 95 % intervals (Student's t),
of each cell and over all cells: there the mean over cells is taken first, so that the interval is over seeds. Without
systems all are shown. ≥ and ≤ are bounds where one of the two missed the target, — where nothing can be said: as
where a run did not finish, made too few iterations, or sends no gradient: then its losses say nothing. With
``--from-iteration 60`` it is not times to the target but the seconds of an iteration, mean over those from the first
evaluation at or after the 60th to the last one; with ``--late-loss`` the held-out loss over the last tenth of the
iterations, as reports give it.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import script

from mqgrad.experiments.estimates import Ratio, Timing, geometric_mean_with_interval, paired_ratio
from mqgrad.experiments.reports.cells import summarize
from mqgrad.experiments.reports.references import timing_of
from mqgrad.experiments.reports.tables import ratio_with_interval
from mqgrad.experiments.sweep.axes import exchanges_nothing
from mqgrad.experiments.sweep.folder import load_config, load_results
from mqgrad.experiments.sweep.result import RunResult

MEAN = "mean of these"


def timings(
    folder: Path, from_iteration: int | None = None, late_loss: bool = False
) -> dict[str, dict[str, Timing | None]]:
    """By cell and system, to the target of the cell; or of an iteration, from a number on; or late losses.

    Raises:
        ValueError: what the folder holds is no comparison.
        OSError: there is none, or it cannot be read.
    """
    config, results = load_config(folder), load_results(folder)
    return {
        str(summary): {
            system: None
            if from_iteration is None and exchanges_nothing(system)
            else _timing(
                [run for run in results if run.cell == summary.cell and run.system == system],
                summary.target,
                from_iteration,
                late_loss,
            )
            for system in config.systems
        }
        for summary in summarize(config, results)
    }


def _timing(
    runs: Sequence[RunResult], target: float | None, from_iteration: int | None, late_loss: bool
) -> Timing | None:
    if not all(run.finished for run in runs):
        return None
    if late_loss:
        figures = {run.seed: run.curve.late for run in runs}
    elif from_iteration is None:
        return timing_of(runs, target)
    else:
        figures = {run.seed: _iteration_seconds(run, from_iteration) for run in runs}
    known = {seed: each for seed, each in figures.items() if each is not None and each > 0}
    return Timing(known) if len(known) == len(runs) else None


def _iteration_seconds(run: RunResult, from_iteration: int) -> float | None:
    """Mean over the iterations from the first evaluation at or after a number on; None where fewer than two
    evaluations follow."""
    points = [point for point in zip(run.iterations, run.seconds, strict=True) if point[0] >= from_iteration]
    if len(points) < 2:
        return None
    (first, begun), (last, ended) = points[0], points[-1]
    return (ended - begun) / (last - first)


def mean_of(timings: Sequence[Timing | None]) -> Timing | None:
    """Geometric mean over systems, seed by seed, of the seeds that all have; None where one has no figures or missed
    a target."""
    known = [each for each in timings if each is not None and not each.missed]
    if len(known) < len(timings):
        return None
    seeds = set.intersection(*({*each.seconds} for each in known))
    return Timing({seed: statistics.geometric_mean(each.seconds[seed] for each in known) for seed in seeds})


def over_cells(own: Sequence[Timing | None], reference: Sequence[Timing | None]) -> Ratio | None:
    """Time ÷ the reference's over all cells, on the seeds that have both in each; None where a target was missed."""
    pairs = [(one, other) for one, other in zip(own, reference, strict=True) if one and other]
    if len(pairs) < len(own):
        return None
    seeds = set.intersection(*({*one.seconds} & {*other.seconds} for one, other in pairs))
    if any(seeds & (one.missed | other.missed) for one, other in pairs):
        return None
    ratios = [
        statistics.geometric_mean(one.seconds[seed] / other.seconds[seed] for one, other in pairs)
        for seed in sorted(seeds)
    ]
    mean = geometric_mean_with_interval(ratios)
    return None if mean is None else Ratio(mean.value, "=", mean.low, mean.high)


def row(cells: dict[str, dict[str, Timing | None]], system: str, reference: str) -> list[Ratio | None]:
    """A system's ratios of each cell, then over all of them."""
    own = [by_system[system] for by_system in cells.values()]
    others = [by_system[reference] for by_system in cells.values()]
    return [*map(paired_ratio, own, others), over_cells(own, others)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("folder", type=Path, help="of a comparison")
    parser.add_argument("systems", nargs="*", help="as the comparison names them; all by default")
    parser.add_argument("--reference", default="plain-ddp", help="what their times are divided by")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--from-iteration",
        type=script.count,
        help="compare the seconds of an iteration from this one on, not times to the target",
    )
    instead.add_argument(
        "--late-loss", action="store_true", help="compare held-out losses at the end, not times"
    )
    parser.add_argument(
        "--mean", action="store_true", help="add the geometric mean of the systems, seed by seed, as one more"
    )
    options = parser.parse_intermixed_args(arguments)
    try:
        cells = timings(options.folder, options.from_iteration, options.late_loss)
    except (OSError, ValueError) as error:
        sys.exit(f"paired_times.py: {error}")
    known = list(next(iter(cells.values()), {}))
    systems = options.systems or [system for system in known if system != options.reference]
    for name in (options.reference, *systems):
        if name not in known:
            sys.exit(
                f"paired_times.py: {name!r} is not in {options.folder}, which has {', '.join(known) or 'no runs'}"
            )
    if options.mean:
        cells = {cell: {**of, MEAN: mean_of([of[name] for name in systems])} for cell, of in cells.items()}
        systems = [*systems, MEAN]
    rows = ((name, *map(ratio_with_interval, row(cells, name, options.reference))) for name in systems)
    script.print_markdown((f"÷ {options.reference}", *cells, "all cells"), rows)


if __name__ == "__main__":
    main()
