"""What a checkpoint of a compressed run consists of, and how it is taken and restored."""

import dataclasses
from typing import Any

from .. import stopwatch
from ..saved_state import check_run, plain_state
from .run import Run
from .training_loop import TrainingLoop

FORMAT_VERSION = 16
"""Of a saved state: to be raised whenever what it holds, or what that means, changes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Saves and restores the state of one rank's run. Another configuration cannot load it, nor can another rank:
    residuals are its own."""

    run: Run
    loop: TrainingLoop

    @property
    def _rank(self) -> int:
        return self.run.shared.transport.global_rank

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`mqgrad.CompressionState.state_dict`."""
        saved = self.saved()
        if self.loop.is_unapplied and self.run.shared.compressor.num_residuals > 0:
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
        self.run.direct.drain()
        self.run.thread.run(stopwatch.settle)  # the next iteration may be opening
        self.run.thread.check()
        state = {
            "format_version": FORMAT_VERSION,
            "config": self.run.shared.configuration,
            "rank": self._rank,
            "parameter_order": self.run.shared.layouts.state_dict(),
            **self.run.iteration.state_dict(),
            **self.run.shared.position.state_dict(),
            **self.run.shared.measured.state_dict(),
            **self.run.shared.decisions.state_dict(),
            "compressor": self.run.shared.compressor.state_dict(),
            "rounds": self.run.rounds.state_dict(),
        }
        return plain_state(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`mqgrad.CompressionState.load_state_dict`."""
        own = self.saved()
        statistics, seen = self.run.iteration.last_statistics, self.run.rounds.seen
        self.run.direct.forget()
        self.run.iteration.recheck()
        check_run(state, own, f"rank {self._rank}")
        try:
            self.run.thread.run(lambda: self._restore(state))
        except Exception:
            self.run.thread.run(lambda: self._restore(own))
            self.run.iteration.last_statistics, self.run.rounds.seen = statistics, seen
            raise
        self.run.shared.layouts.expect_others()
        self.loop.restart()

    def _restore(self, state: dict[str, Any]) -> None:
        """Load part by part. Where one refuses, those before it have changed: the caller restores its own state."""
        self.run.shared.layouts.load_state_dict(state["parameter_order"])
        self.run.shared.position.load_state_dict(state)
        self.run.shared.measured.load_state_dict(state)
        self.run.rounds.load_state_dict(state["rounds"])
        self.run.shared.layouts.parted = self.run.rounds.iterations > 0
        self.run.iteration.load_state_dict(state)
        self.run.shared.compressor.load_state_dict(state["compressor"])
        self.run.shared.decisions.load_state_dict(state)
