"""What several parts of one run on one rank use."""

import dataclasses

from ..collectives.transport import Transport
from ..compressors.base import Compressor
from .decisions import Decisions
from .interval_position import IntervalPosition
from .iteration_clock import IterationClock
from .layout_table import LayoutTable
from .measurements import Measurements


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SharedParts:
    """Of a :class:`mqgrad.CompressionState`; :func:`mqgrad.hook.run.assemble_run` puts them together.

    Three threads use them, and what keeps them apart is the order of an iteration:

    - The training thread brings layouts and reports losses and laps, between two backwards.
    - The communication thread opens iterations, and with them checks and decides; that may be while the training
      thread goes on to report, so both go by counts that were taken when the opening was asked for.
    - Whoever has the last bucket's mean closes the iteration: the communication thread, or one of the backend's where
      :class:`mqgrad.hook.direct.DirectAverages` averages; the script's ``optimizer.step()`` waits for it.
    """

    configuration: str
    """Of the run, compared between the ranks and with what is loaded."""
    transport: Transport
    compressor: Compressor
    decisions: Decisions
    """What is in force, and who decides."""
    layouts: LayoutTable
    """Of the buckets, which the training thread finds."""
    position: IntervalPosition
    """In the interval."""
    measured: Measurements
    """What iterations cost and showed is added here."""
    clock: IterationClock
    """Of the training loop."""
