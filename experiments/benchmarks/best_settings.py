"""Which of its settings every system is fastest at, of a folder that ``mqgrad compare --grid tuning`` has made.

    python experiments/benchmarks/best_settings.py experiments/results/2026-11-28-tuning

For each system its settings, the fastest first, with time to target ÷ plain DDP's: the geometric mean over links and
seeds, then that of each link. Settings with a run that missed a target come last, with a bound (≥).
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import script

from mqgrad.experiments.compare import tuning
from mqgrad.experiments.estimates import Ratio, sort_key
from mqgrad.experiments.reports.cells import summarize
from mqgrad.experiments.reports.overall import summarize_overall
from mqgrad.experiments.reports.tables import ratio_with_interval
from mqgrad.experiments.sweep.folder import load_config, load_results


def ratios(folder: Path) -> tuple[list[str], dict[str, list[Ratio | None]]]:
    """The cells' names; by system its times ÷ plain DDP's, over all cells and then of each.

    Raises:
        ValueError: what the folder holds is no comparison.
        OSError: there is none, or it cannot be read.
    """
    config = load_config(folder)
    cells = summarize(config, load_results(folder))
    of_cells = [{each.system: each.ratios.get("fp32") for each in cell.systems} for cell in cells]
    of_all = {each.system: each.ratios.get("fp32") for each in summarize_overall(config, cells)}
    by_system = {name: [mean, *(cell.get(name) for cell in of_cells)] for name, mean in of_all.items()}
    return [str(cell) for cell in cells], by_system


def rows(by_system: dict[str, list[Ratio | None]]) -> Iterator[tuple[str, str, list[Ratio | None]]]:
    """System, setting, ratios: the settings that were run, of each system the fastest first."""
    for system, settings in (tuning.CONTROLLERS | tuning.COMPRESSORS | tuning.METHODS).items():
        for setting in sorted(
            (name for name in settings if name in by_system), key=lambda name: sort_key(by_system[name][0])
        ):
            yield system, setting, by_system[setting]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("folder", type=Path, help="of a comparison")
    options = parser.parse_args(arguments)
    try:
        cells, by_system = ratios(options.folder)
    except (OSError, ValueError) as error:
        sys.exit(f"best_settings.py: {error}")
    lines = (
        (system, setting, *map(ratio_with_interval, values)) for system, setting, values in rows(by_system)
    )
    script.print_markdown(("", "setting", "all links", *cells), lines)


if __name__ == "__main__":
    main()
