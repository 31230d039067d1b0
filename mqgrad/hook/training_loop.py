"""What happens on the training thread: buckets come through the hook, iterations end, and with them rounds; and a
script that has no controller chooses widths."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..compressors.base import BucketWork
from ..statistics.rank import RankStatistics
from ..widths import UNCODED, Width, Widths
from .decisions import whole_iterations
from .forgotten_calls import ForgottenCalls
from .measurements import check_loss
from .run import Run


class TrainingLoop:
    """One rank's training loop, as far as it calls: the comm hook, ``step`` and ``finish_round``, and what chooses
    widths.

    What these hand over goes on beside it, on the communication thread or the backend's own.

    With a controller, calls that choose widths are refused: they would shift where intervals end, which is where
    ranks then check that they agree.

    Args:
        run: what it consists of.
        in_rounds: whether ranks step alone, and average what parameters have moved.
    """

    def __init__(self, run: Run, *, in_rounds: bool) -> None:
        shared = run.shared
        self._transport, self._decisions, self._layouts = shared.transport, shared.decisions, shared.layouts
        self._position, self._measured, self._clock = shared.position, shared.measured, shared.clock
        self._iteration, self._thread = run.iteration, run.thread
        self._queued, self._direct = run.queued, run.direct
        self._rounds, self._in_rounds = run.rounds, in_rounds
        self._forgotten = ForgottenCalls(shared.transport.global_rank, steps_alone=in_rounds)
        self._is_last_due = False
        """Whether buckets of an iteration have come, and not yet its last one."""
        self.is_unapplied = False
        """Whether buckets have been averaged since the last step: what residuals no longer owe is not applied yet."""

    @property
    def iterations_alone(self) -> int:
        """Complete iterations of the round under way."""
        return self._rounds.iterations

    @property
    def replicas_are_equal(self) -> bool:
        """Whether the last step ended a round."""
        return self.iterations_alone == 0

    def check_open(self, call: str) -> None:
        """Raise ``RuntimeError`` after the state has been closed, naming what was called."""
        self._thread.check_open(f"{call} on rank {self._transport.global_rank}")

    def reduce_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hand a bucket to the communication thread, or to an all-reduce as it is."""
        self._forgotten.on_bucket(is_last=bucket.is_last())
        self.check_open("backward()")  # in rounds replicas would part without a word
        if bucket.is_last():
            self._layouts.count_iteration()
        if self._in_rounds:
            return self._rounds.pass_on(bucket, self._layouts.of(bucket)[0])
        self._is_last_due, self.is_unapplied = not bucket.is_last(), True
        if self._direct.takes(bucket):
            return self._direct.start(bucket.buffer(), is_last=bucket.is_last())
        layout, gradients = self._layouts.of(bucket)
        work = BucketWork(bucket.buffer(), gradients, layout)
        return self._queued.average(work, is_last=bucket.is_last())

    def bits_of_step(self) -> Widths:
        """Widths of the gradient that the optimizer is about to step by; of one that was not sent, as it is.

        Raises:
            RuntimeError: it is none, or the sum of several, of which one may have been sent at fewer bits.
        """
        backwards = self._forgotten.backwards
        if self._transport.world_size == 1 or (
            self._measured.totals.iterations == 0 and not self.is_unapplied
        ):
            return UNCODED
        if backwards > 1 or not self.is_unapplied:
            raise RuntimeError(
                f"rank {self._transport.global_rank}: {backwards} backwards between a state.step(loss) and "
                "optimizer.step(): with second_moment call backward, optimizer.step() and state.step(loss) in this "
                "order, the last also where you skip a step, without a closure; accumulate gradients under "
                "ddp.no_sync(); and load the optimizer's state before this object's"
            )
        return self._iteration.bits

    def step(self, loss: torch.Tensor | float) -> None:
        """End an iteration; see :meth:`mqgrad.CompressionState.step`."""
        self.check_open("step()")
        self._thread.check()  # a script may have caught what backward raised
        check_loss(loss, self._transport.global_rank)  # before anything is counted
        sends_gradients = self._transport.world_size > 1 and not self._in_rounds
        self._forgotten.on_step(is_undecided=sends_gradients and self._decisions.is_forgotten)
        if self._in_rounds:
            self._end_local_iteration()
        else:
            self._end_averaged_iteration()
            self._forgotten.on_update(stands_still=self._iteration.stands_still)
        self.is_unapplied = False
        self._measured.report(loss, self._clock.lap(communicated=self.replicas_are_equal))
        if self.replicas_are_equal:
            self._begin_round()

    def _end_local_iteration(self) -> None:
        if self._decisions.period_rule is not None and self.replicas_are_equal:
            with self._clock.blocked():
                self._thread.drain()  # a decision that was posted when the round began
            self._thread.check()
        self._rounds.end_iteration()
        # `>=`: after an average that failed the count is beyond the period, and the next step is to fail again.
        if self._rounds.iterations >= self._decisions.period:
            self._average_round()

    def _end_averaged_iteration(self) -> None:
        if self._is_last_due:
            self._end_without_last()
        self._iteration.note_step()

    def _end_without_last(self) -> None:
        """DDP keeps the last bucket to itself where nobody has used its parameters and it has been told to skip such,
        and calls none the last in the first iteration of a static graph."""
        self._is_last_due = False
        self._clock.begin_wait(self._transport.device)
        self._direct.finish()
        if not self._thread.has_failed:
            self._thread.run(self._iteration.finish)

    def _average_round(self) -> None:
        # Scripts that evaluate may finish a round there; what is remembered of it must not be inference tensors.
        with self._clock.blocked(), torch.inference_mode(False):
            self._rounds.finish(self._decisions.period)

    def _begin_round(self) -> None:
        if self._measured.end_round(self._decisions.interval):
            self._position.report()
        if self._position.is_settled and self._position.is_check_due:
            reported = self._position.reported
            self._thread.post(lambda: self._iteration.open(reported))  # during forward

    def finish_round(self) -> None:
        """End the round under way, if there is one; see :meth:`mqgrad.CompressionState.finish_round`."""
        if self.replicas_are_equal:
            return
        self.check_open("finish_round()")
        self._thread.check()
        self._average_round()
        self._measured.extend(self._clock.lap(communicated=True))
        self._begin_round()

    def set_width(self, bits: Width | Sequence[Width]) -> None:
        """See :meth:`mqgrad.CompressionState.set_width`."""
        self._refuse_with_controller("set_width()")
        # In the iterations of an announced interval nothing would tell the ranks that they differ.
        left = self._position.announced
        if left > 0:
            raise RuntimeError(
                f"set_width() on rank {self._transport.global_rank}: {left} iterations are left of the interval that "
                "begin_interval() has begun; call that"
            )
        self._decisions.request(bits, len(self._layouts.parameters))

    def begin_interval(self, iterations: int, bits: Width | Sequence[Width]) -> None:
        """See :meth:`mqgrad.CompressionState.begin_interval`."""
        self._refuse_with_controller("begin_interval()")
        interval = whole_iterations(f"interval on rank {self._transport.global_rank}", iterations)
        self.check_open("begin_interval()")
        self._thread.drain()  # what an interval before it has posted
        self._decisions.request(bits, len(self._layouts.parameters))
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
                f"take_statistics() on rank {self._transport.global_rank}, {left} iterations before the interval "
                "ends that begin_interval() began: call it then"
            )
        return self._iteration.take_statistics()

    def _refuse_with_controller(self, call: str) -> None:
        if (controller := self._decisions.controller) is not None:
            raise RuntimeError(
                f"{call} on rank {self._transport.global_rank}: the controller, {type(controller).__name__}, "
                "decides; to choose widths yourself, construct CompressionState without one"
            )

    def drain(self) -> None:
        """Wait until what was handed over is done, a decision included."""
        self.check_open("drain()")
        self._direct.drain()
        self._thread.drain()

    def restart(self) -> None:
        """Begin an iteration here, as another state has been loaded."""
        self._is_last_due = self.is_unapplied = False
        self._forgotten.restart()
        self._iteration.abandon()
        self._clock.restart()
