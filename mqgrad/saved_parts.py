"""What a checkpoint of a compressed run consists of."""

import dataclasses
from typing import Any

from .compressors.base import Compressor
from .decisions import Decisions
from .interval_position import IntervalPosition
from .iteration import Iteration
from .layout import LayoutTable
from .local_rounds import LocalRounds
from .measurements import Measurements

FORMAT_VERSION = 10
"""Of a saved state: to be raised whenever what it holds, or what that means, changes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SavedParts:
    """The parts of a run on one rank that have a state."""

    config: str
    """Of the run: another one cannot load the state."""
    rank: int
    """Neither can another rank: residuals are its own."""
    layouts: LayoutTable
    iteration: Iteration
    position: IntervalPosition
    measured: Measurements
    decisions: Decisions
    compressor: Compressor
    rounds: LocalRounds

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain types."""
        return {
            "format_version": FORMAT_VERSION,
            "config": self.config,
            "rank": self.rank,
            "parameter_order": self.layouts.state_dict(),
            **self.iteration.state_dict(),
            **self.position.state_dict(),
            **self.measured.state_dict(),
            **self.decisions.state_dict(),
            "compressor": self.compressor.state_dict(),
            "rounds": self.rounds.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned. Where a part refuses it, others have changed."""
        self.layouts.load_state_dict(state["parameter_order"])
        self.position.load_state_dict(state)
        self.measured.load_state_dict(state)
        self.rounds.load_state_dict(state["rounds"])
        self.iteration.load_state_dict(state)
        self.compressor.load_state_dict(state["compressor"])
        self.decisions.load_state_dict(state)
