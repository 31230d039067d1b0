"""What happens in every iteration, for the most part on the communication thread: it is opened, buckets are averaged,
it is closed; and between two intervals, a width is decided."""

import math
import time
from typing import Any

from .. import stopwatch
from ..collectives.wire_meter import DONE, Pending
from ..compressors.base import BucketWork, Step
from ..costs import Costs
from ..layout import Layout
from ..statistics.interval import IntervalStatistics
from ..statistics.rank import RankStatistics
from ..widths import Widths
from .agreement import Agreement, versions
from .gradient_figures import GradientFigures
from .param_groups import HasParamGroups
from .second_moment import FrozenSecondMoment
from .shared_parts import SharedParts
from .update_probe import UpdateProbe

_CODES_LEARN_EVERY = 10
"""Iterations, in intervals that are longer."""


class Iteration:
    """The iteration under way on one rank: opened, averaged bucket by bucket, closed; and then the next.

    1. If an interval has ended, the :meth:`mqgrad.CompressionState.step` before it opens it: the ranks compare
       configuration, iteration, width and others, 64 bytes each. (So they do in the first three iterations after
       construction and loading, and without a controller where the caller announces an interval, or else in every
       iteration, where the first bucket opens it.)
    2. Then they exchange the interval's statistics; rank 0's controller decides and broadcasts the width, in force
       from this iteration on. All of that goes on during forward: the training loop never waits for it.
    3. Every bucket is averaged, the end of one beside the start of the next (:meth:`.Compressor.start_average_`).
    4. The last bucket closes it.

    Whatever starts a collective runs on the communication thread, for one bucket after another in the same order on
    all ranks; but for iterations that :meth:`open_direct` gives to the training thread.

    Args:
        parts: of the run.
        seed: of the run, equal on all ranks.
        of_deltas: whether what parameters have moved in a round is averaged, and not gradients.
        optimizer: of the script, if it is known.
        second_moment: by which some iterations are sent at more bits than was decided.
    """

    def __init__(
        self,
        parts: SharedParts,
        *,
        seed: int,
        of_deltas: bool,
        optimizer: HasParamGroups | None = None,
        second_moment: FrozenSecondMoment | None = None,
    ) -> None:
        self._transport, self._compressor = parts.transport, parts.compressor
        self._decisions, self._layouts, self._position = parts.decisions, parts.layouts, parts.position
        self._measured, self._clock = parts.measured, parts.clock
        self._seed, self._of_deltas, self._second_moment = seed, of_deltas, second_moment
        self.last_statistics: IntervalStatistics | None = None
        """Statistics that the controller saw last."""
        terms = f"{parts.configuration}, {parts.decisions.terms}, {versions()}"
        self._agreement = Agreement(parts.transport, terms)
        traits = parts.decisions.traits
        by_parameter, tried = traits.wants_parameters, traits.trial_widths
        self._figures = GradientFigures(seed, parts.compressor, by_parameter=by_parameter, trial_widths=tried)
        # A mean of moves is applied as it is, and steps by a frozen second moment are linear in the gradient.
        self._probe = None if of_deltas or second_moment else UpdateProbe(optimizer)
        self.closed_bits = parts.decisions.first_bits
        """Width of the last iteration that is complete, a mean over elements; before there is one, of the first."""
        self.bits: Widths = self.closed_bits
        """Of the last iteration, or of the one that is open."""
        self._least_bits = math.inf
        """Of the interval's complete iterations."""
        self.closed_period = parts.decisions.period
        """Iterations of the last round that is complete; before there is one, of the first."""
        self._first_parameters = 0
        """Of parameters that had come when the last iteration, or round, was complete: alike on all ranks, as DDP has
        made them."""
        self._is_open = False  # from what precedes its first bucket to its last one
        self.is_direct = False
        """Whether :meth:`open_direct` has opened it."""

    def start_average(self, work: BucketWork, is_last: bool, period: int) -> Pending[None]:
        """Begin to average a bucket of an iteration, or a round of ``period``; the end of the last one closes it."""
        self.open(first_parameters=work.layout.first_parameters)
        if self._position.is_last:
            self._measure(work, is_last)
        averaged: Pending[None] = DONE  # the mean of one gradient is that gradient
        if work.buffer.numel() == 0:
            averaged = Pending(lambda: None)  # the bucket before it may not have ended
        elif self._transport.world_size > 1:
            averaged = self._compressor.start_average_(work, self._step(work.layout, period))
        if not is_last:
            return averaged
        if averaged is DONE:
            self.close(period)
            return DONE
        return averaged.then(lambda _: self.close(period))

    def finish(self) -> None:
        """End an iteration that is open though all its buckets have their means: DDP called none the last."""
        if self._is_open:
            if self._position.is_last:
                self._figures.finish(self._measured.statistics, self._layouts.numels)
            self.close()

    def _measure(self, work: BucketWork, is_last: bool) -> None:
        self._figures.add(work)
        if self._probe is not None:
            self._probe.begin(work, self._layouts.parameters)
        if is_last:
            self._figures.finish(self._measured.statistics, self._layouts.numels)

    def _step(self, layout: Layout, period: int) -> Step:
        bits, number = self.bits, self._position.closed + 1
        return Step(
            transport=self._transport,
            bits=0 if isinstance(bits, tuple) else bits,
            parameter_bits=layout.widths(bits) if isinstance(bits, tuple) else None,
            iteration=self._measured.totals.iterations,
            seed=self._seed,
            costs=self._measured.open_costs,
            # by what all ranks count alike, whatever a script reports: to learn is a collective
            measure=number == self._decisions.interval or number % _CODES_LEARN_EVERY == 0,
            seconds=self._clock.seconds,
            laps=self._clock.laps,
            number=number,
            period=period,
            of_deltas=self._of_deltas,
            statistics=self.last_statistics,
        )

    def open(self, reported: int | None = None, first_parameters: int = 0) -> None:
        """Check agreement if that is due and, where an interval has ended, decide; unless that has been done.

        Args:
            reported: losses when this was asked for, if it is not now: the training thread goes on.
            first_parameters: those that have come, as of a layout, where no iteration is complete yet. Without any
                the first bucket opens it, as ranks compare them before they send one.
        """
        if self._is_open or not (self._first_parameters or first_parameters):
            return
        self._is_open = True
        stopwatch.settle()
        if self._position.is_check_due:
            reported = self._position.reported if reported is None else reported
            self._check_agreement(reported, self._first_parameters or first_parameters)
            if self._position.is_decision_due(reported):
                self._decide(reported)
            else:
                self._position.put_off_check(reported)
        self.bits = self._in_force

    def open_round(self) -> None:
        """:meth:`open`, before ranks tell one another anything by parameter: all that the round has have come."""
        self.open(first_parameters=self._layouts.first_parameters)

    def reopen(self, reported: int) -> None:
        """:meth:`open`, though that may have been done: another width has been asked for, and no bucket has come."""
        self._is_open = False
        self.open(reported)

    def open_direct(self) -> bool:
        """Open the next iteration if its buckets may each be summed as they are, without the communication thread.

        For the training thread, while the communication thread is idle. It has to :meth:`close` the iteration, too.
        In one that begins with a check or ends with figures they may not.
        """
        if self._is_open or self._position.is_check_due or self._position.is_last:
            return False
        bits = self._in_force
        if self._transport.world_size == 1 or not self._compressor.is_plain(bits):
            return False
        self._is_open = self.is_direct = True
        self.bits = bits
        return True

    @property
    def _in_force(self) -> Widths:
        """Of the next iteration; all ranks have decided on, and count, the same."""
        bits = self._decisions.bits
        if self._second_moment is None:
            return bits
        return self._second_moment.in_force(bits, self._measured.totals.iterations)

    def _check_agreement(self, reported: int, first_parameters: int) -> None:
        agreed = self._agreement.start_check(
            iteration=self._measured.totals.iterations,
            bits=self._decisions.bits,
            announced=self._position.announced,
            losses=reported,
            residuals=self._compressor.num_residuals,
            parameters=first_parameters,
            chosen=self._compressor.chosen,
        )
        if self._may_overlap_check():
            self._transport.await_first(agreed)
        else:
            agreed.wait()

    def _may_overlap_check(self) -> bool:
        """Whether a plain bucket follows at once, of a length that ranks have agreed on; where the width is settled,
        the check overlaps forward instead."""
        is_plain = self._first_parameters != 0 and self._compressor.is_plain(self._in_force)
        return is_plain and not self._position.is_settled and self._transport.world_size > 1

    def _decide(self, reported: int) -> None:
        stopwatch.settle()
        started, wire_seconds = time.perf_counter(), self._transport.wire_seconds
        self.last_statistics = self._gather_statistics(reported)
        # Every rank decides, so that all hold the same controller state; rank 0's answer counts.
        num_parameters = len(self._layouts.parameters)
        decision = self._decisions.make(self.last_statistics, num_parameters, self._transport.global_rank)
        decided = self._agreement.of_rank_0(decision, num_parameters)
        self._decisions.adopt(decided, self._transport.global_ranks[0])
        stopwatch.settle()
        on_wire = self._transport.wire_seconds - wire_seconds
        self._measured.open_costs.decide_seconds += time.perf_counter() - started - on_wire
        self._transport.move_costs(self._measured.open_costs)  # for a checkpoint: this is not decided again

    def _gather_statistics(self, reported: int) -> IntervalStatistics:
        least_bits = self._least_bits
        return self._agreement.gather(
            self.take_statistics(reported),
            interval=self._decisions.interval,
            iteration=self._measured.totals.iterations,
            bits=least_bits,
            period=self._decisions.period,
            last_period=self.closed_period,
            coding=self._compressor.coding(self._transport.world_size),
        )

    def note_step(self) -> None:
        """For the training thread: the optimizer has stepped, and all buckets of the iteration have their means."""
        if self._probe is not None:
            self._probe.note_step(self._layouts.parameters)

    @property
    def stands_still(self) -> bool:
        """Whether no step that was looked at has moved a parameter yet."""
        return self._probe is not None and self._probe.stands_still

    def take_statistics(self, reported: int | None = None) -> RankStatistics:
        """Return this rank's statistics of the interval, and begin another; after the optimizer's step.

        Args:
            reported: losses of the interval, if they are not all that there are now, as for :meth:`open`.
        """
        reported = self._position.reported if reported is None else reported
        if self._probe is not None:
            self._measured.statistics.update_exponent = self._probe.end()
        self._position.restart(reported)
        self._least_bits = math.inf
        return self._measured.take(reported)

    def close(self, period: int = 1) -> None:
        """End the iteration, or the round of ``period``, that is open: all its buckets have their means."""
        self._is_open = self.is_direct = False
        self._clock.end_wait()
        if self._position.is_last or self._measured.totals.iterations == 0:
            stopwatch.settle()  # what an interval costs counts in it, and start-up in the iteration that is left out
        bits = self.bits
        self.closed_bits = self._layouts.mean_over_elements(bits) if isinstance(bits, tuple) else bits
        self._least_bits = min(self._least_bits, self.closed_bits)
        self._transport.move_costs(self._measured.open_costs)
        self.closed_period = period
        self._measured.close_iteration(self.closed_bits, period)
        self._position.close()
        self._first_parameters = self._layouts.first_parameters
        if gone := self._layouts.take_gone():
            self._compressor.forget(gone)

    def recheck(self) -> None:
        """Check agreement before the next iterations, whatever is due: another rank may have loaded another state."""
        self._is_open = self.is_direct = False
        self._first_parameters = 0  # the next bucket tells those that have been loaded
        self._position.recheck()

    def abandon(self) -> None:
        """Forget an iteration that is open: the state that has been loaded begins one of its own."""
        self._transport.move_costs(Costs())  # what it has cost is not this run's
        self.bits = self._in_force  # only here: a state that is refused leaves it as it was

    def state_dict(self) -> dict[str, Any]:
        """The last widths and period as plain types: what is open is not in them."""
        return {"bits": self.closed_bits, "least_bits": self._least_bits, "closed_period": self.closed_period}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, which ``state`` may hold among other things."""
        self.closed_bits, self.closed_period = state["bits"], state["closed_period"]
        self._least_bits = state["least_bits"]
        self.last_statistics = None  # of the run that was here before
