"""What a checkpoint of a compressed run consists of, and how it is taken and restored."""

import dataclasses
from typing import Any

from .. import stopwatch
from ..collectives.comm_thread import CommThread
from ..saved_state import check_run
from .direct import DirectAverages
from .iteration import Iteration
from .local_rounds import LocalRounds
from .run_parts import RunParts
from .training_loop import TrainingLoop

FORMAT_VERSION = 15
"""Of a saved state: to be raised whenever what it holds, or what that means, changes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The parts of a run on one rank that have a state, and what goes on beside them meanwhile."""

    parts: RunParts
    """Another configuration cannot load the state, nor can another rank: residuals are its own."""
    loop: TrainingLoop
    thread: CommThread
    direct: DirectAverages
    iteration: Iteration
    rounds: LocalRounds

    @property
    def _rank(self) -> int:
        return self.parts.transport.global_rank

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`mqgrad.CompressionState.state_dict`."""
        saved = self.saved()
        if self.loop.is_unapplied and self.parts.compressor.num_residuals > 0:
            raise RuntimeError(
                f"rank {self._rank}: state_dict() between a backward, of which buckets have been averaged, "
                "and its step(): save between step() and the next backward, on every rank; after an exception go "
                "back to the checkpoint before"
            )
        return saved

    def saved(self) -> dict[str, Any]:
        """The same at any time, when it may be of no use.

        Raises:
            RuntimeError: communication has failed.
        """
        self.direct.drain()
        self.thread.run(stopwatch.settle)  # the next iteration may be opening
        self.thread.check()
        return {
            "format_version": FORMAT_VERSION,
            "config": self.parts.configuration,
            "rank": self._rank,
            "parameter_order": self.parts.layouts.state_dict(),
            **self.iteration.state_dict(),
            **self.parts.position.state_dict(),
            **self.parts.measured.state_dict(),
            **self.parts.decisions.state_dict(),
            "compressor": self.parts.compressor.state_dict(),
            "rounds": self.rounds.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`mqgrad.CompressionState.load_state_dict`."""
        own = self.saved()
        statistics, seen = self.iteration.last_statistics, self.rounds.seen
        self.direct.forget()
        self.iteration.recheck()
        check_run(state, own, f"rank {self._rank}")
        try:
            self.thread.run(lambda: self._restore(state))
        except Exception:
            self.thread.run(lambda: self._restore(own))
            self.iteration.last_statistics, self.rounds.seen = statistics, seen
            raise
        self.loop.restart()

    def _restore(self, state: dict[str, Any]) -> None:
        """Load part by part. Where one refuses, those before it have changed: the caller restores its own state."""
        self.parts.layouts.load_state_dict(state["parameter_order"])
        self.parts.position.load_state_dict(state)
        self.parts.measured.load_state_dict(state)
        self.rounds.load_state_dict(state["rounds"])
        self.parts.layouts.parted = self.rounds.iterations > 0
        self.iteration.load_state_dict(state)
        self.parts.compressor.load_state_dict(state["compressor"])
        self.parts.decisions.load_state_dict(state)
