"""The cluster of real ``torch.distributed`` processes."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from mqgrad.checks import check_count, check_positive
from mqgrad.compatibility import check_compatible
from mqgrad.compressors import DEFAULT_COMPRESSOR, NoCommunication
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.widths import Width, check_width

from ..link import LinkEmulation
from ..methods import DDP, DEFAULT_METHOD, NoSync, OverlapLocalSGD, RankInterval, has_width, make_method
from ..methods.interval import combine
from ..workloads.smooth import compressor_for
from ..workloads.workload import Workload, make_workload, workload_reference
from .clock import ModelClock
from .cluster import ControllerSpec, check_run_seed, own_controller
from .errors import ReplicaMismatchError
from .local_ranks import LocalRanks
from .method_checks import check_method, warn_of_momentum
from .torchrun_ranks import TorchrunRanks


class Ranks(Protocol):
    """The processes behind a cluster."""

    world_size: int

    def call(self, method: str, /, **arguments: Any) -> list[Any]:
        """Call a method of every rank's ``TrainingSession``; return the results by rank."""
        ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What was asked for at the last reset."""

    clock: ModelClock | None
    widths: tuple[Width, ...]
    period: int
    """Iterations of a round."""
    caller_decides: bool
    """Whether the caller decides the width, and no controller."""
    replicas_diverge: bool

    def check_rounds(self, iterations: int) -> None:
        if iterations % self.period:
            raise ValueError(f"{iterations} iterations are no whole number of rounds of {self.period}")


class Distributed:
    """W processes train one model over ``torch.distributed``: local ones started here, or those of a torchrun job.

    Local workers live from construction to :meth:`close`, through any number of resets.

    Args:
        workload: name of a registered workload, or ``"package.module:factory"`` of your own.
        workload_settings: its settings, see the workload's class.
        num_workers: ranks, one process with one compute thread each.
        clock: None, or a :class:`ModelClock`: then seconds are computed, nothing is paced, and a run's
            link only supplies the clock's rate, and its latency if it has one.
        timeout_seconds: longest that an iteration, a reset or an evaluation may take before its rank counts as hung.

    Raises:
        ValueError: an unknown workload or an invalid setting.
        WorkerError: a worker could not start.
    """

    def __init__(
        self,
        workload: str = "digits-cnn",
        workload_settings: dict[str, Any] | None = None,
        *,
        num_workers: int = 2,
        clock: ModelClock | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        check_count(num_workers=num_workers)
        settings = workload_settings or {}
        reference = workload_reference(workload)
        self._configure(make_workload(workload, **settings), clock, timeout_seconds)
        self._start: Callable[[], Ranks] | None = lambda: LocalRanks(
            reference, settings, num_workers, timeout_seconds
        )
        self._ranks: Ranks = self._start()

    @classmethod
    def from_torchrun(
        cls,
        workload: str | Workload = "digits-cnn",
        workload_settings: dict[str, Any] | None = None,
        *,
        clock: ModelClock | None = None,
        timeout_seconds: float = 60.0,
    ) -> "Distributed":
        """Use the ranks of the torchrun job that runs this script. Every rank calls it; then rank 0 drives, and the
        others call :meth:`serve`.

        Raises:
            RuntimeError: not a torchrun job, or its port is in use.
            WorkerError: a rank could not start.
        """
        if isinstance(workload, str):
            workload = make_workload(workload, **(workload_settings or {}))
        cluster = cls.__new__(cls)
        cluster._configure(workload, clock, timeout_seconds)
        cluster._start = None
        cluster._ranks = TorchrunRanks(workload, timeout_seconds)
        return cluster

    def _configure(self, workload: Workload, clock: ModelClock | None, timeout_seconds: float) -> None:
        check_positive(timeout_seconds=timeout_seconds)
        if clock is not None and not isinstance(clock, ModelClock):
            raise ValueError(f"clock must be a ModelClock or None, not {clock!r}")
        self.workload = workload
        """Its name and settings are what the workers train."""
        self.clock = clock
        """Models the seconds; None where they are measured."""
        self._run: _Run | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._ranks.world_size

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of local workers by rank; empty under torchrun."""
        return self._ranks.pids if isinstance(self._ranks, LocalRanks) else []

    def reset(
        self,
        seed: int,
        *,
        link: LinkEmulation | None = None,
        controller: ControllerSpec | None = None,
        compressor: str = DEFAULT_COMPRESSOR,
        method: str = DEFAULT_METHOD,
    ) -> None:
        """Begin a run; see :class:`mqgrad.trainers.clusters.cluster.Cluster`.

        Raises:
            ValueError: a wrong seed; an unknown controller or compressor, or one that does not go with the other; a
                method that the link cannot pace, or that leaves no rank; a modelled clock on a link of several rates,
                or with a method whose seconds it does not know. The run before goes on then.
            WorkerError: a rank died, hung or raised.
        """
        # Mistakes are found here, where they cost no worker, and the run before goes on.
        check_run_seed(seed)
        run = self._planned(link, controller, compressor, method)
        self._ranks.call(
            "reset",
            seed=seed,
            link=None if self.clock else link,
            controller=controller,
            compressor=compressor,
            method=method,
        )
        self._run = run

    def _planned(
        self, link: LinkEmulation | None, controller: ControllerSpec | None, compressor: str, method: str
    ) -> "_Run":
        """What is known of a run before it begins; as :meth:`reset` raises."""
        own_compressor = compressor_for(self.workload, compressor, self.world_size)
        own_method = make_method(method)
        check_compatible(own_controller(controller), own_compressor)
        check_method(
            method, own_method, world_size=self.world_size, controller=controller, clock=self.clock, link=link
        )
        warn_of_momentum(self.workload, own_compressor, own_method)
        return _Run(
            clock=self.clock.on_link(link) if self.clock and link else self.clock,
            widths=own_compressor.widths,
            period=own_method.period if isinstance(own_method, DDP) else 1,
            caller_decides=controller is None and has_width(method),
            replicas_diverge=isinstance(own_compressor, NoCommunication)
            or isinstance(own_method, (NoSync, OverlapLocalSGD)),
        )

    def run(
        self, iterations: int, bits: Width | None = None, *, to_exchange: bool = False
    ) -> IntervalStatistics:
        """Train; see :class:`mqgrad.trainers.clusters.cluster.Cluster`.

        Where the caller decides and iterations come in rounds (``ddp:period=8``), statistics are those of rounds.
        With a controller, gradient figures are those it saw last, 0 before its first decision, and ``bits`` is the
        width of the last iteration: run ``controller.interval`` iterations at a time for one width per call.

        Raises:
            ValueError: an unknown width, or both or neither of a width and a controller; a part of a round.
            RuntimeError: there was no reset.
            WorkerError: a rank died, hung or raised.
        """
        check_count(iterations=iterations)
        run = self._begun("run()")
        if bits is None and run.caller_decides:
            raise ValueError("bits=None, but reset() was given no controller to decide: pass a width")
        if bits is not None and not run.caller_decides:
            raise ValueError(
                f"bits={bits!r}, but the controller or method given to reset() decides: leave bits out"
            )
        if bits is not None:
            check_width(bits, run.widths)
            run.check_rounds(iterations)
        intervals: list[RankInterval] = self._ranks.call(
            "run", iterations=iterations, bits=bits, to_exchange=to_exchange
        )
        statistics = combine(intervals)
        return run.clock.apply(statistics) if run.clock else statistics

    def _begun(self, call: str) -> "_Run":
        if self._run is None:
            raise RuntimeError(f"call reset(seed) before {call}")
        return self._run

    def evaluate(self) -> dict[str, float]:
        """Held-out figures of the current model; takes no training time.

        Raises:
            RuntimeError: there was no reset.
            WorkerError: a rank died, hung or raised.
        """
        self._begun("evaluate()")
        return self._ranks.call("evaluate")[0]

    def verify_replicas(self) -> str:
        """Return the hash of the parameters, which all ranks must share.

        Raises:
            ReplicaMismatchError: they do not.
            RuntimeError: there was no reset.
            ValueError: the run's compressor is ``none``, or its method ``no-sync`` or ``overlap-local-sgd``, under
                which replicas never become equal.
        """
        if self._begun("verify_replicas()").replicas_diverge:
            raise ValueError("the replicas of this run never become equal, by its method or compressor")
        digests: list[str] = self._ranks.call("digest")
        others = [rank for rank, value in enumerate(digests) if value != digests[0]]
        if others:
            raise ReplicaMismatchError(f"parameters of ranks {others} differ from rank 0's: {digests}")
        return digests[0]

    @property
    def can_restart(self) -> bool:
        """Whether :meth:`restart` can start new workers: not under torchrun."""
        return self._start is not None

    @property
    def needs_restart(self) -> bool:
        """Whether a failure or an interruption has cost the workers; not that :meth:`close` has ended them."""
        return isinstance(self._ranks, LocalRanks) and self._ranks.are_lost

    def restart(self) -> None:
        """Start new workers after a failure; a :meth:`reset` must follow.

        Raises:
            RuntimeError: under torchrun, where the job has to be started again.
        """
        if self._start is None:
            raise RuntimeError(
                "the ranks of a torchrun job cannot be restarted from inside it: start it again"
            )
        self.close()
        self._ranks = self._start()

    def serve(self) -> None:
        """On ranks other than 0 of a torchrun job: obey rank 0 until it closes the cluster."""
        if not isinstance(self._ranks, TorchrunRanks):
            raise RuntimeError("serve() is for the ranks of a torchrun job; local workers need no call")
        self._ranks.serve()

    def close(self) -> None:
        """Stop the workers; bounded, and may be called twice. Happens by itself when the process ends."""
        self._run = None
        self._ranks.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Distributed":
        """Itself: processes cannot be copied, and Gymnasium copies an environment's arguments to tell its spec."""
        return self

    def __enter__(self) -> "Distributed":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
