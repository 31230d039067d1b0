"""The state of a compressed DDP run: what ``register_comm_hook`` and the training loop hold."""

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..codecs.quantization_noise import Coding
from ..collectives.own_group import own_group
from ..collectives.paced_link import Link, check_link
from ..collectives.process_group import ProcessGroupTransport
from ..collectives.transport import Transport
from ..compressors import DEFAULT_COMPRESSOR, Compressor, make_compressor
from ..controllers.base import Controller
from ..controllers.period_rules import PeriodRule
from ..costs import Totals
from ..failures import short_description
from ..seeding import check_seed
from ..statistics.interval import IntervalStatistics
from ..statistics.rank import RankStatistics
from ..widths import Width
from .at_exit import close_at_exit
from .checkpoint import Checkpoint
from .decisions import Decisions
from .ownership import check_free, check_savable, claim
from .param_groups import HasParamGroups, brings_momentum, check_optimizer, has_momentum
from .round_settings import RoundSettings
from .run import assemble_run
from .second_moment import FrozenSecondMoment, SecondMoments, check_second_moment
from .training_loop import TrainingLoop

_NOT_AVERAGED = (
    "compressor 'none' sends nothing, not even as it is, so that replicas part: to average gradients without "
    "compressing them, leave it out, and give FixedBits(32) as the controller"
)
_MOMENTUM_TWICE = (
    "compressor {!r} takes a momentum of the gradients by itself, and the optimizer, {}, takes another one of that: "
    "give it SGD with momentum=0"
)


class CompressionState:
    """Compresses one DDP model's gradients at a width that a controller chooses while the run goes on.

    Construct it on every rank at the same point (it creates a process group), register it together with
    :func:`mqgrad.compression_hook`, and call :meth:`step` after each ``optimizer.step()``.

    Communication runs on one thread while backward goes on, or at 32 bits mostly on the backend's own
    (:class:`mqgrad.hook.direct.DirectAverages`), and the width of an iteration is decided during its forward
    (:class:`mqgrad.hook.iteration.Iteration`): the training loop never waits for that.

    Args:
        controller: decides the width every ``controller.interval`` iterations, the first time earlier if it says so
            (see :class:`mqgrad.controllers.Controller`); None leaves it to :meth:`set_width` and
            :meth:`begin_interval`, until whose first call it is the compressor's largest, 32 bits mostly. It
            remembers the run: give another state another object, as with compressors.
        process_group: ranks to average over; the default group if None. The same as DDP's, which a hook cannot see.
        transport: collectives of its own between the ranks, which :meth:`close` closes; then process group, link and
            timeout are not used.
        compressor: how gradients travel: a name as :func:`mqgrad.make_compressor` takes it, or an object of its own.
            The default quantizes with error feedback, which costs an fp32 copy of the model, and with more than two
            ranks a W-th of one for the shard that a rank owns.
        seed: of stochastic rounding, equal on all ranks.
        period: iterations of a round. 1 averages gradients. With more every rank steps with its own, and what its
            parameters have moved is averaged where the round ends (:class:`mqgrad.hook.round_memory.RoundMemory`).
            There is less to wait for, but it is not training with one large batch any more. "Iteration" then means a
            round above, in intervals and in statistics. The parameters are then this object's: change them by hand
            only before the first iteration, and go back to an earlier model with the state that was saved beside it.
        slow_momentum: β of those averages.
        variance_reduced: whether ranks correct their steps by how far they drifted from the mean in the round before,
            for data that is not equally distributed over the ranks (VRL-SGD, Liang et al. 2019). It costs another
            fp32 copy of the model, and no bytes. The learning rate should change slowly beside a round.
        period_rule: decides the period from then on, wherever the controller decides a width, and at least every ten
            rounds; ``period`` is that of the first ones. A period of 1 then is a round of one iteration. Learned
            policies know one period only.
        optimizer: the script's, or an object with the ``param_groups`` of several. Whether its steps grow with the
            gradient (:mod:`mqgrad.hook.update_probe`), by which policies and the goodput rule expect what a width
            costs, is found from outside, and found wrong where parameters have learning rates of their own, unless
            these are read here. It is warned of a momentum where the compressor takes one, too. Without
            ``second_moment`` nothing else is read, changed or saved. In rounds a ``ZeroRedundancyOptimizer`` is
            refused.
        second_moment: freezes that of ``optimizer``, an Adam, while gradients are coded at few bits, by hooks around
            its steps, so that it does not take their noise for gradient; see :mod:`mqgrad.hook.second_moment`. Some
            iterations are sent at more bits for it; controllers see the least bits of an interval. It costs one more
            fp32 copy of the model while a step is made, and is saved with the optimizer's state.
        link: emulated network, see :class:`mqgrad.collectives.process_group.ProcessGroupTransport`.
        timeout_seconds: bound on every wait for another rank, 10 minutes by default. It must be longer than what one
            rank does alone, such as an evaluation or saving a checkpoint.

    Raises:
        ValueError: for an unknown compressor; a controller that may choose a width, or wants trials at one, which the
            compressor lacks; in rounds an optimizer that ranks share, or a second moment to be frozen; an optimizer
            that has none; a wrong seed, period, momentum or timeout; a controller's wrong interval; a period rule
            without a controller; a group without this rank; a compressor, controller or rule that remembers the run
            of another state, open or closed.
        TypeError: what is no compressor, controller, period rule, optimizer, link or process group, such as a name of
            a controller or rule, or the class of an object.
        RuntimeError: torch.distributed has not been initialised.
    """

    def __init__(
        self,
        controller: Controller | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        transport: Transport | None = None,
        compressor: Compressor | str = DEFAULT_COMPRESSOR,
        seed: int = 0,
        period: int = 1,
        slow_momentum: float = 0.0,
        variance_reduced: bool = False,
        period_rule: PeriodRule | None = None,
        optimizer: HasParamGroups | None = None,
        second_moment: FrozenSecondMoment | None = None,
        link: Link | None = None,
        timeout_seconds: float = 600.0,
    ) -> None:
        rounds = RoundSettings(
            period=period,
            slow_momentum=slow_momentum,
            variance_reduced=variance_reduced,
            period_rule=period_rule,
        )
        seed, period = check_seed(seed), int(period)
        self.compressor = _as_compressor(compressor)
        check_optimizer(optimizer, in_rounds=rounds.are_wanted)
        adam = check_second_moment(
            second_moment,
            optimizer,
            widths=self.compressor.widths,
            parameter_widths=self.compressor.parameter_widths,
            in_rounds=rounds.are_wanted,
        )
        check_free(compressor=self.compressor, controller=controller, period_rule=period_rule)
        if compressor == "none":
            warnings.warn(_NOT_AVERAGED, RuntimeWarning, stacklevel=2)
        check_link(link)
        decisions = Decisions(controller, period_rule, self.compressor, period=period)
        check_savable(self.compressor, controller, period_rule)
        self._transport = transport or ProcessGroupTransport(own_group(process_group, timeout_seconds), link)
        with contextlib.ExitStack() as undone:  # for who goes on after an error
            if transport is None:
                undone.callback(self._transport.close)
            averages_gradients = self._transport.world_size > 1 and not rounds.are_wanted
            if averages_gradients and has_momentum(optimizer) and brings_momentum(self.compressor):
                told = _MOMENTUM_TWICE.format(compressor, type(optimizer).__name__)
                warnings.warn(told, RuntimeWarning, stacklevel=2)
            run = assemble_run(
                self._transport,
                self.compressor,
                decisions,
                seed=seed,
                rounds=rounds,
                optimizer=optimizer,
                second_moment=second_moment,
            )
            undone.pop_all()
        self._shared, self._iteration = run.shared, run.iteration
        self._thread, self._direct = run.thread, run.direct
        self._loop = TrainingLoop(run, in_rounds=rounds.are_wanted)
        self._moments = None
        if adam is not None and second_moment is not None:
            loop = self._loop
            self._moments = SecondMoments(
                second_moment, adam, lambda: second_moment.is_refreshed_at(loop.bits_of_step())
            )
        self._checkpoint = Checkpoint(run=run, loop=self._loop)
        self._is_closed = False
        claim(self.compressor, controller, period_rule)
        close_at_exit(self, self._direct)

    @property
    def controller(self) -> Controller | None:
        """Decides the width; None where :meth:`set_width` does."""
        return self._shared.decisions.controller

    @property
    def period_rule(self) -> PeriodRule | None:
        """Decides the period; None where it stays."""
        return self._shared.decisions.period_rule

    @property
    def coding(self) -> Coding:
        """What noise to expect of the compressor among these ranks."""
        return self.compressor.coding(self._transport.world_size)

    @property
    def totals(self) -> Totals:
        """What the run has cost this rank so far."""
        return self._shared.measured.totals

    @property
    def last_statistics(self) -> IntervalStatistics | None:
        """Statistics that the controller saw last; None before that, and after loading."""
        return self._iteration.last_statistics

    @property
    def interval(self) -> int:
        """Iterations of the current interval. Where no controller decides 10, until :meth:`begin_interval` says."""
        return self._shared.decisions.interval

    @property
    def period(self) -> int:
        """Iterations of the last complete round, before there is one of the first; 1 where gradients are averaged."""
        return self._iteration.closed_period

    @property
    def bits(self) -> Width:
        """Width of the last iteration that is complete; before there is one, of the first.

        Where parameters have widths of their own, the mean over elements.
        """
        return self._iteration.closed_bits

    @property
    def parameter_bits(self) -> tuple[Width, ...] | None:
        """Widths of the last or current iteration by parameter; None where all have the same."""
        bits = self._iteration.bits
        return bits if isinstance(bits, tuple) else None

    @property
    def parameters(self) -> tuple[torch.Tensor, ...]:
        """The model's parameters in the order of widths by parameter; all after the first iteration."""
        return tuple(self._shared.layouts.parameters)

    def step(self, loss: torch.Tensor | float) -> None:
        """Report the iteration's training loss; call once, after its last ``optimizer.step()``. It blocks where a
        round of local iterations ends, when it averages parameters, and after a round's first iteration, where a rule
        decides how many it has; and where DDP has called no bucket the last.

        The time until the first call after construction holds start-up costs: that iteration counts as long as the
        second, unless :meth:`mark` has started the clock. A first interval of one iteration waits for the second.

        Raises:
            ValueError: a loss that is not one number.
            RuntimeError: the state is closed, or the iteration or a round's average has failed.
        """
        self._loop.step(loss)

    def finish_round(self) -> None:
        """End a round of local iterations here, however many it has had, so that all ranks have the same parameters.

        For the end of the run, or where a script evaluates or saves. Every rank calls it, after the same
        :meth:`step`: if one calls it alone all fail, by their checksums; where there are none (at 32 bits, on CUDA,
        with some compressors) at the end of the interval. To controllers it is a round as any other. Does nothing
        where replicas are equal.

        Raises:
            RuntimeError: the average failed; or a state has been loaded, and no backward was made since.
        """
        self._loop.finish_round()

    @property
    def replicas_are_equal(self) -> bool:
        """Whether the last :meth:`step` ended a round, so that all ranks have the same parameters; see ``period`` and
        :meth:`finish_round`."""
        return self._loop.replicas_are_equal

    def mark(self) -> None:
        """Start the clock here: call after a pause such as an evaluation, so that it is not taken for training.

        Every rank calls it. If one rank pauses and the others do not, let them meet in a barrier first: what they
        would wait for it in the next collective counts as communication.
        """
        self._shared.clock.start()

    def set_width(self, bits: Width | Sequence[Width]) -> None:
        """Use a width from the next iteration on, where no controller decides; the same value on every rank.

        As it may be called at any time, ranks then check that they agree in every iteration, and wait for it; see
        :meth:`begin_interval`.

        Args:
            bits: one width, or after the first iteration one for each of :attr:`parameters`.

        Raises:
            RuntimeError: where a controller decides, or within an interval that has been announced.
            ValueError: for an unknown width, or a wrong number of widths.
        """
        self._loop.set_width(bits)

    def begin_interval(self, iterations: int, bits: Width | Sequence[Width]) -> None:
        """Use a width for the next iterations, where no controller decides; the same values on every rank.

        :meth:`take_statistics` then returns what they cost and showed; what has been measured before is dropped, and
        so is what is left of an interval. As with a controller, ranks check that they agree where such an interval
        begins, beside forward, and not in each of its iterations.

        Args:
            iterations: of the interval, at least 1. The gradient is looked at in the last.
            bits: as in :meth:`set_width`.

        Raises:
            RuntimeError: where a controller decides.
            ValueError: for an unknown width, a wrong number of widths or no whole number of iterations.
        """
        self._loop.begin_interval(iterations, bits)

    def take_statistics(self) -> RankStatistics:
        """Return what this rank measured since the last call, and start anew. For a caller that decides itself.

        Of losses, the last 10,000 are in it, or those of an :attr:`interval` if it is longer.

        Raises:
            RuntimeError: where a controller decides, or within an interval that :meth:`begin_interval` began: codes
                may learn from its iterations by their number, on all ranks.
        """
        return self._loop.take_statistics()

    def __reduce__(self) -> NoReturn:
        """Of a wrapped model, copied or saved as a whole.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a CompressionState holds a process group and a thread, and cannot be copied or pickled: copy or save "
            "ddp.module in place of the wrapped model, and state.state_dict()"
        )

    def drain(self) -> None:
        """Wait until what was handed over is done, a decision included."""
        self._loop.drain()

    def close(self) -> None:
        """Finish the work at hand, stop the communication thread and give its process group back; once.

        Warns:
            RuntimeWarning: communication has failed, which the training loop may not have been told; or a round is
                under way, so that replicas differ.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.ExitStack() as closing:  # all of it, after Ctrl-C as well
            closing.callback(self._transport.close)
            closing.callback(self._thread.close)
            if self._moments is not None:
                self._moments.close()
            self._direct.drain()
        self._warn_of_loose_ends()

    def _warn_of_loose_ends(self) -> None:
        rank = self._transport.global_rank
        if self._thread.failure is not None:
            text = f"rank {rank}: communication had failed before close(): {short_description(self._thread.failure)}"
        elif not self.replicas_are_equal:
            text = (
                f"rank {rank}: closed within a round, after {self._loop.iterations_alone} iterations of its own: the "
                "replicas differ; call finish_round() before"
            )
        else:
            return
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def reduce_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hand a bucket to the communication thread, or to an all-reduce as it is; the body of the comm hook."""
        return self._loop.reduce_bucket(bucket)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state as tensors and plain types; every rank must save its own.

        Call it between ``step`` and the next backward. It holds the residuals, the position in the interval, the
        controller and the totals: a run that loads it goes on with the same gradients: bit by bit from 1 bit on,
        at 32 bits with two ranks. Of one that was saved within a round, load the model after DDP has wrapped it: to
        wrap it is to give all ranks the parameters of rank 0.

        Raises:
            RuntimeError: communication has failed, or a backward has no step yet: either leaves residuals that are
                ahead of the model.
        """
        self._loop.check_open("state_dict()")
        return self._checkpoint.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned on this rank, on every rank. Where that is refused only this has
        changed: an announced interval has ended, and ranks check in the next iterations that they agree.

        What it holds of each parameter goes by the order in which DDP first brought them. If this run's DDP has other
        options, by which the order is another one, its first backward raises a ``ValueError`` on every rank.

        Raises:
            ValueError: if it was saved with other arguments or another world size, or by a version of mqgrad whose
                states look otherwise; or DDP has already brought parameters in another order.
            RuntimeError: communication has failed, which takes a new state.
        """
        self._loop.check_open("load_state_dict()")
        self._checkpoint.load_state_dict(state)


def _as_compressor(compressor: Compressor | str) -> Compressor:
    if isinstance(compressor, str):
        return make_compressor(compressor)
    if not hasattr(compressor, "start_average_"):
        raise TypeError(f"compressor {compressor!r} is neither a name nor a Compressor")
    return compressor
