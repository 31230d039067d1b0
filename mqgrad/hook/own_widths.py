"""Widths that a script chooses by itself, where no controller does."""

from collections.abc import Sequence

from ..statistics.rank import RankStatistics
from ..widths import Width
from .decisions import whole_iterations
from .run import Run
from .training_loop import TrainingLoop


class OwnWidths:
    """What :class:`mqgrad.CompressionState` does where its caller decides.

    With a controller every call is refused: it would shift where intervals end, which is where ranks then check that
    they agree.
    """

    def __init__(self, run: Run, loop: TrainingLoop) -> None:
        shared = run.shared
        self._decisions, self._position, self._layouts = shared.decisions, shared.position, shared.layouts
        self._iteration, self._thread, self._loop = run.iteration, run.thread, loop
        self._rank = shared.transport.global_rank

    def set(self, bits: Width | Sequence[Width]) -> None:
        """See :meth:`mqgrad.CompressionState.set_width`."""
        self._refuse_with_controller("set_width()")
        # In the iterations of an announced interval nothing would tell the ranks that they differ.
        left = self._position.announced
        if left > 0:
            raise RuntimeError(
                f"set_width() on rank {self._rank}: {left} iterations are left of the interval that "
                "begin_interval() has begun; call that"
            )
        self._request(bits)

    def begin_interval(self, iterations: int, bits: Width | Sequence[Width]) -> None:
        """See :meth:`mqgrad.CompressionState.begin_interval`."""
        self._refuse_with_controller("begin_interval()")
        interval = whole_iterations(f"interval on rank {self._rank}", iterations)
        self._loop.check_open("begin_interval()")
        self._thread.drain()  # what an interval before it has posted
        self._request(bits)
        self._decisions.interval = interval
        self._position.announce(interval)
        self._iteration.take_statistics()
        self._thread.post(lambda: self._iteration.reopen(0))  # during forward

    def take_statistics(self) -> RankStatistics:
        """See :meth:`mqgrad.CompressionState.take_statistics`."""
        self._refuse_with_controller("take_statistics()")
        left = self._position.announced
        if left and self._position.closed:
            raise RuntimeError(
                f"take_statistics() on rank {self._rank}, {left} iterations before the interval "
                "ends that begin_interval() began: call it then"
            )
        return self._iteration.take_statistics()

    def _request(self, bits: Width | Sequence[Width]) -> None:
        self._decisions.request(bits, len(self._layouts.parameters))

    def _refuse_with_controller(self, call: str) -> None:
        if (controller := self._decisions.controller) is not None:
            raise RuntimeError(
                f"{call} on rank {self._rank}: the controller, {type(controller).__name__}, "
                "decides; to choose widths yourself, construct CompressionState without one"
            )
