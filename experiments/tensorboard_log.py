"""TensorBoard logs of one run, under the tags that ``mqgrad train`` uses for the same figures."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from mqgrad.run_folder import check_writable

from .runs import PARTS, RunPoint


class TensorBoardLog:
    """Writes the points of a run; bytes and seconds per iteration are means since the point before.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        check_writable(folder)
        # The points of an earlier run in the folder are not shown any more.
        self._writer = SummaryWriter(str(folder), purge_step=0)
        self._iteration = 0
        self._totals: dict[str, float] = {}

    def write(self, point: RunPoint) -> None:
        """Log one point."""
        figures = {"bits": point.bits, "loss": point.train_loss, "elapsed_seconds": point.elapsed_seconds}
        figures |= {f"heldout_{name}": value for name, value in point.heldout.items()}
        figures |= {f"compressor_{name}": value for name, value in point.figures.items()}
        figures |= self._per_iteration(point)
        for name, value in figures.items():
            self._writer.add_scalar(f"mqgrad/{name}", value, point.iteration)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()

    def _per_iteration(self, point: RunPoint) -> dict[str, float]:
        totals = {f"{part}_seconds": point.parts[part] for part in PARTS}
        totals["wire_mib"] = point.wire_bytes / 2**20
        iterations = point.iteration - self._iteration
        means = {name: (total - self._totals.get(name, 0.0)) / iterations for name, total in totals.items()}
        self._iteration, self._totals = point.iteration, totals
        return means
