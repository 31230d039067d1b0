"""What several parts of one run on one rank use."""

import dataclasses

from ..collectives.transport import Transport
from ..compressors.base import Compressor
from ..layout_table import LayoutTable
from .decisions import Decisions
from .interval_position import IntervalPosition
from .iteration_clock import IterationClock
from .measurements import Measurements


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SharedParts:
    """Of a :class:`mqgrad.CompressionState`; :func:`mqgrad.hook.run.assemble_run` puts them together."""

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
