"""The state of a compressed DDP run: what ``register_comm_hook`` and the training loop hold."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import stopwatch
from .agreement import Agreement
from .comm_thread import CommThread
from .compatibility import check_compatible
from .compressors import DEFAULT_COMPRESSOR, Compressor, make_compressor
from .compressors.base import BucketWork, Step
from .controllers.base import Controller, opening_of, trial_widths, wants_parameters
from .costs import Costs, Totals
from .gradient_figures import GradientFigures
from .iteration_clock import IterationClock
from .layout import Layout, LayoutTable
from .measurements import Measurements
from .paced_link import Link
from .saved_state import check_keys, check_version
from .statistics import IntervalStatistics, RankStatistics
from .transport import Transport, own_group
from .widths import Width, Widths, check_parameter_widths, check_width
from .wire_meter import DONE, Pending

FORMAT_VERSION = 1
"""Of a saved state: to be raised whenever what it holds, or what that means, changes."""


class CompressionState:
    """Compresses one DDP model's gradients at a width that a controller chooses while the run goes on.

    Construct it on every rank at the same point (it creates a process group), register it together with
    :func:`mqgrad.compression_hook`, and call :meth:`step` after each ``optimizer.step()``.

    Communication runs on one thread while backward goes on. An iteration is:

    1. The :meth:`step` before it opens it: the ranks compare configuration, iteration and width in one small
       all-gather. (The first iteration is opened by its first bucket.)
    2. If an interval has ended, they exchange its statistics; rank 0's controller decides and broadcasts the width,
       in force from this iteration on. All of that goes on during forward: the training loop never waits for it.
    3. Every bucket is averaged, the end of one beside the start of the next (:meth:`.Compressor.start_average_`).
    4. The last bucket closes it.

    Args:
        controller: decides the width every ``controller.interval`` iterations, the first time earlier if it says so
            (see :class:`mqgrad.controllers.Controller`); None leaves it to :meth:`set_width`.
        process_group: ranks to average over; the default group if None.
        transport: collectives of its own between the ranks, which :meth:`close` closes; then process group, link and
            timeout are not used.
        compressor: how gradients travel: a name as :func:`mqgrad.make_compressor` takes it, or an object of its own.
            The default quantizes with error feedback, which costs two fp32 copies of the model.
        seed: of stochastic rounding, equal on all ranks.
        interval: iterations per interval when there is no controller.
        link: emulated network, see :class:`mqgrad.transport.Transport`.
        timeout_seconds: bound on every wait for another rank, 10 minutes by default. It must be longer than what one
            rank does alone, such as an evaluation or saving a checkpoint.

    Raises:
        ValueError: for an unknown compressor, or a controller that may choose a width, or wants trials at one, which
            the compressor lacks.
    """

    def __init__(
        self,
        controller: Controller | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        transport: Transport | None = None,
        compressor: Compressor | str = DEFAULT_COMPRESSOR,
        seed: int = 0,
        interval: int = 10,
        link: Link | None = None,
        timeout_seconds: float = 600.0,
    ) -> None:
        self.controller = controller
        self.interval = opening_of(controller) if controller is not None else interval
        """Iterations of the current interval."""
        self.last_statistics: IntervalStatistics | None = None
        """Statistics that the controller saw last."""
        self._transport = transport or Transport(own_group(process_group, timeout_seconds), link)
        world_size = self._transport.world_size
        self.compressor = make_compressor(compressor) if isinstance(compressor, str) else compressor
        self._seed = seed
        self._config = f"{self.compressor}, seed={seed}, world_size={world_size}"
        by_parameter, tried = wants_parameters(controller), trial_widths(controller)
        check_compatible(controller, self.compressor)
        opening, interval = self.interval, controller.interval if controller is not None else interval
        decides = f"a controller decides={controller is not None}, {opening=}, {interval=}, {by_parameter=}, {tried=}"
        self._agreement = Agreement(self._transport, f"{self._config}, {decides}")
        self._layouts = LayoutTable(bucket_size=self.compressor.bucket_size, world_size=world_size)
        self._figures = GradientFigures(seed, self.compressor, by_parameter=by_parameter, trial_widths=tried)
        first_bits = controller.initial_bits if controller is not None else self.compressor.widths[-1]
        self._closed_bits = check_width(first_bits, self.compressor.widths)
        self._requested_bits: Widths = self._closed_bits
        self._bits: Widths = self._closed_bits
        self._measured = Measurements()
        self._is_open = False  # between the first and the last bucket of an iteration
        self._clock = IterationClock()
        self._thread = CommThread(self._transport.device)

    @property
    def totals(self) -> Totals:
        """What the run has cost this rank so far."""
        return self._measured.totals

    @property
    def bits(self) -> Width:
        """Width of the last iteration that is complete; before there is one, of the first.

        Where parameters have widths of their own, the mean over elements.
        """
        return self._closed_bits

    @property
    def parameter_bits(self) -> tuple[Width, ...] | None:
        """Widths of the last or current iteration by parameter; None where all have the same."""
        return self._bits if isinstance(self._bits, tuple) else None

    @property
    def parameters(self) -> tuple[torch.Tensor, ...]:
        """The model's parameters in the order of widths by parameter; all after the first iteration."""
        return tuple(self._layouts.parameters)

    def step(self, loss: torch.Tensor | float) -> None:
        """Report the iteration's training loss; call after ``optimizer.step()``. Never blocks.

        The time until the first call after construction holds start-up costs: that iteration counts as long as the
        second, unless :meth:`mark` has started the clock. A first interval of one iteration waits for the second.
        """
        self._measured.report(loss, self._clock.lap(), keep_untimed=self.interval > 1)
        if self.controller is not None:
            self._thread.post(self._open_iteration)

    def mark(self) -> None:
        """Start the clock here: call after a pause such as an evaluation, so that it is not taken for training.

        Every rank calls it. If one rank pauses and the others do not, let them meet in a barrier first: what they
        would wait for it in the next collective counts as communication.
        """
        self._clock.start()

    def set_width(self, bits: Width | Sequence[Width]) -> None:
        """Use a width from the next iteration on, where no controller decides; the same value on every rank.

        Args:
            bits: one width, or after the first iteration one for each of :attr:`parameters`.

        Raises:
            ValueError: for an unknown width, or a wrong number of widths.
        """
        self._requested_bits = self._checked(bits)

    def _checked(self, bits: Width | Sequence[Width]) -> Widths:
        compressor = self.compressor
        return check_parameter_widths(
            bits, compressor.widths, compressor.parameter_widths, len(self._layouts.parameters)
        )

    def take_statistics(self) -> RankStatistics:
        """Return what this rank measured since the last call, and start anew. For a caller that decides itself."""
        return self._measured.take()

    def drain(self) -> None:
        """Wait until the communication thread has done what it was given, a decision included."""
        self._thread.drain()

    def close(self) -> None:
        """Finish the work at hand, stop the communication thread and give its process group back."""
        self._thread.close()
        self._transport.close()

    def reduce_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hand a bucket to the communication thread; the body of the comm hook."""
        layout, gradients = self._layouts.of(bucket)
        work = BucketWork(bucket.buffer(), gradients, layout)
        is_last = bucket.is_last()
        if is_last:
            self._clock.begin_wait(work.buffer.device)
        return self._thread.submit(lambda: self._start_average(work, is_last), work.buffer)

    # What follows runs on the communication thread, for one bucket after another in the same order on all ranks.

    def _start_average(self, work: BucketWork, is_last: bool) -> Pending[None]:
        self._open_iteration()
        measure = len(self._measured.losses) + 1 == self.interval
        if measure:
            self._figures.add(work, self._measured.statistics)
        averaged: Pending[None] = DONE  # the mean of one gradient is that gradient
        if self._transport.world_size > 1:
            averaged = self.compressor.start_average_(work, self._step(work.layout, measure))
        return averaged.then(lambda _: self._close_iteration(is_measured=measure)) if is_last else averaged

    def _step(self, layout: Layout, measure: bool) -> Step:
        bits = self._bits
        return Step(
            transport=self._transport,
            bits=0 if isinstance(bits, tuple) else bits,
            parameter_bits=layout.widths(bits) if isinstance(bits, tuple) else None,
            iteration=self.totals.iterations,
            seed=self._seed,
            costs=self._measured.open_costs,
            measure=measure,
            seconds=self._clock.seconds,
        )

    def _open_iteration(self) -> None:
        if self._is_open:
            return
        self._is_open = True
        stopwatch.settle()
        agreed = self._agreement.start_check(
            iteration=self.totals.iterations,
            bits=self._requested_bits,
            losses=len(self._measured.losses),
            residuals=self.compressor.num_residuals,
        )
        if self._may_overlap_check():
            self._transport.await_first(agreed)
        else:
            agreed.wait()
        if self.controller is not None and len(self._measured.losses) >= self.interval:
            self._decide(self.controller)
        self._bits = self._requested_bits

    def _may_overlap_check(self) -> bool:
        """Whether a plain bucket follows at once; with a controller, the check overlaps forward instead."""
        is_plain = self.compressor.is_plain(self._requested_bits)
        return is_plain and self.controller is None and self._transport.world_size > 1

    def _decide(self, controller: Controller) -> None:
        stopwatch.settle()
        started, wire_seconds = time.perf_counter(), self._transport.wire_seconds
        self.last_statistics = self._agreement.gather(
            self.take_statistics(),
            interval=self.interval,
            iteration=self.totals.iterations,
            bits=self._closed_bits,
            rotated=self.compressor.rotates_few_bits,
        )
        # Every rank decides, so that all hold the same controller state; rank 0's answer counts.
        decision = self._checked(controller.decide(self.last_statistics))
        self.interval = controller.interval
        self._requested_bits = self._agreement.adopt(decision, len(self._layouts.parameters))
        stopwatch.settle()
        on_wire = self._transport.wire_seconds - wire_seconds
        self._measured.open_costs.decide_seconds += time.perf_counter() - started - on_wire
        self._transport.move_costs(self._measured.open_costs)  # for a checkpoint: this is not decided again

    def _close_iteration(self, is_measured: bool) -> None:
        self._is_open = False
        self._clock.end_wait()
        if is_measured or self.totals.iterations == 0:
            stopwatch.settle()  # what an interval costs counts in it, and start-up in the iteration that is left out
        bits = self._bits
        self._closed_bits = self._layouts.mean_over_elements(bits) if isinstance(bits, tuple) else bits
        self._transport.move_costs(self._measured.open_costs)
        self._measured.close_iteration(self._closed_bits)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state as tensors and plain types; every rank must save its own.

        Call it between ``step`` and the next backward. It holds the residuals, the position in the interval, the
        controller and the totals: a run that loads it goes on with the same bytes.
        """
        self._thread.drain()  # the next iteration may be opening
        return {
            "format_version": FORMAT_VERSION,
            "config": self._config,
            "requested_bits": self._requested_bits,
            "bits": self._closed_bits,
            "interval": self.interval,
            **self._measured.state_dict(),
            "compressor": self.compressor.state_dict(),
            "controller": self.controller.state_dict() if self.controller is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned on this rank; where that is refused, nothing has changed.

        Raises:
            ValueError: if it was saved with other arguments or another world size, or by a version of mqgrad whose
                states look otherwise.
        """
        owner, own = f"rank {self._transport.rank}", self.state_dict()
        check_version(state.get("format_version"), FORMAT_VERSION, owner)
        check_keys(state, own, owner)
        if state["config"] != self._config:
            raise ValueError(
                f"rank {self._transport.rank}: the state was saved with [{state['config']}] and cannot be loaded "
                f"into [{self._config}]; construct CompressionState with the saved arguments"
            )
        if (state["controller"] is None) != (self.controller is None):
            raise ValueError(
                "the state was saved with a controller and is loaded without one, or the reverse"
            )
        try:
            self._load(state)
        except Exception:
            self._load(own)
            raise
        self._transport.move_costs(Costs())  # of the next iteration, if it is open: not this run's
        self._is_open = False  # the ranks compare notes anew, in case one of them has not loaded its state
        self._clock.restart()

    def _load(self, state: dict[str, Any]) -> None:
        self._measured.load_state_dict(state)
        requested = state["requested_bits"]
        self._requested_bits = requested if isinstance(requested, tuple) else check_width(requested)
        self._bits = self._requested_bits
        self._closed_bits = state["bits"]
        self.interval = state["interval"]
        self._thread.run(lambda: self.compressor.load_state_dict(state["compressor"]))
        if self.controller is not None:
            self.controller.load_state_dict(state["controller"])
