"""The cluster of virtual ranks: W of them in one process, on a modelled clock."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from mqgrad.checks import check_count, check_positive
from mqgrad.compressors import DEFAULT_COMPRESSOR, NoCommunication, make_compressor
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.widths import Width

from ..link import LinkEmulation
from ..methods import DDP, DEFAULT_METHOD, make_method
from ..threads import torch_threads
from ..workloads.calls import evaluation_of
from ..workloads.workload import Workload, make_workload
from .clock import ModelClock
from .cluster import Cluster, ControllerSpec, check_run_seed
from .in_process import MeetingPoint
from .virtual_ranks import SimulatedRun


class Simulated:
    """W virtual ranks train one model in this process, one after another; seconds are *modelled*.

    Everything but the processes is that of :class:`~mqgrad.trainers.Distributed` with the method ``ddp``: the
    statistics, the agreement between ranks, controllers, compressors and the bytes they send. (Controllers decide
    after as many iterations as they say, however short those are.) With the same seed,
    workload and widths it computes the same losses and figures to the last bit, except where fp32 is summed over
    more than two ranks (width 32, and compressors that leave some parameters uncoded), whose order Gloo chooses. For
    pre-training policies and for more ranks than a machine has cores; claims are made on real clusters.

    Args:
        workload: name of a registered workload, or ``"package.module:factory"`` of your own.
        workload_settings: its settings, see the workload's class.
        num_workers: virtual ranks; each costs a gradient and what its compressor remembers.
        clock: seconds of an iteration; see :func:`calibrate`.
        timeout_seconds: longest that a virtual rank waits for the others' part of a collective.

    Raises:
        ValueError: an unknown workload or an invalid setting.
    """

    def __init__(
        self,
        workload: str = "digits-cnn",
        workload_settings: dict[str, Any] | None = None,
        *,
        num_workers: int = 2,
        clock: ModelClock,
        timeout_seconds: float = 60.0,
    ) -> None:
        check_count(num_workers=num_workers)
        check_positive(timeout_seconds=timeout_seconds)
        if not isinstance(clock, ModelClock):
            raise ValueError(f"clock must be a ModelClock, whose seconds a simulation needs, not {clock!r}")
        self.world_size = num_workers
        self.workload: Workload = make_workload(workload, **(workload_settings or {}))
        self.clock = clock
        self._timeout_seconds = timeout_seconds
        self._run: SimulatedRun | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Simulated":
        """Itself, as :class:`~mqgrad.trainers.Distributed`: of a run with its threads there is no copy."""
        return self

    def reset(
        self,
        seed: int,
        *,
        link: LinkEmulation | None = None,
        controller: ControllerSpec | None = None,
        compressor: str = DEFAULT_COMPRESSOR,
        method: str = DEFAULT_METHOD,
    ) -> None:
        """Begin a run; see :class:`mqgrad.trainers.clusters.cluster.Cluster`. A controller sees modelled seconds.

        Raises:
            ValueError: a wrong seed; an unknown controller or compressor; a method other than ``ddp``, in rounds or
                not; the compressor ``none``. The run before goes on then.
        """
        check_run_seed(seed)
        made = make_method(method)
        if not isinstance(made, DDP) or made.is_local:
            raise ValueError(f"method {method!r} is not simulated, only {DEFAULT_METHOD!r}: use Distributed")
        if isinstance(make_compressor(compressor), NoCommunication):
            raise ValueError(
                f"compressor {compressor!r} is not simulated: its replicas would not stay identical"
            )
        clock = self.clock.on_link(link) if link else self.clock
        meeting_point = MeetingPoint(self.world_size, self._timeout_seconds)
        with _as_a_rank():
            begun = SimulatedRun(
                self.workload, meeting_point, clock, seed, controller, compressor, made.second_moment
            )
        self.close()
        self._run = begun

    def run(
        self, iterations: int, bits: Width | None = None, *, to_exchange: bool = False
    ) -> IntervalStatistics:
        """Train; see :class:`mqgrad.trainers.clusters.cluster.Cluster`. Every iteration ends with an exchange.

        Whatever ends it before its time ends the run, Ctrl-C too: the ranks are then at different batches.

        Raises:
            ValueError: an unknown width, or both or neither of a width and a controller; the run goes on then. Or
                parameters of the workload's model took no part in its loss.
        """
        check_count(iterations=iterations)
        run = self._started()
        with _as_a_rank():
            run.begin(iterations, bits)
            try:
                return run.train(iterations)
            except BaseException:
                self.close()
                raise

    def evaluate(self) -> dict[str, float]:
        """Held-out figures of the current model; takes no modelled time."""
        run = self._started()
        with _as_a_rank(), run.ranks[0].random_numbers():
            return evaluation_of(self.workload, run.model)

    def close(self) -> None:
        """End the run and its threads. May be called twice."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def __enter__(self) -> "Simulated":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _started(self) -> SimulatedRun:
        if self._run is None:
            raise RuntimeError("call reset(seed) before anything else")
        return self._run


def calibrate(
    cluster: Cluster, *, mbit_per_s: float, latency_ms: float = 0.0, iterations: int = 20, bits: int = 8
) -> ModelClock:
    """A clock with the compute seconds that a short run of a real cluster measures; the link is the caller's.

    The clock knows nothing of encoding and decoding, as if both hid behind compute.

    Args:
        cluster: measures its seconds; it is reset. Give each of its ranks the core that it would have in earnest.
        mbit_per_s: rate at which one rank would send.
        latency_ms: per iteration.
        iterations: how many are measured, after five that are not.
        bits: width of that run.

    Raises:
        ValueError: a cluster whose seconds are modelled.
    """
    if getattr(cluster, "clock", None) is not None:
        raise ValueError("calibrate needs measured seconds: give a Distributed cluster without a clock")
    cluster.reset(seed=0)
    cluster.run(5, bits=bits)
    measured = cluster.run(iterations, bits=bits)
    return ModelClock(compute_seconds=measured.compute_seconds, mbit_per_s=mbit_per_s, latency_ms=latency_ms)


@contextlib.contextmanager
def _as_a_rank() -> Iterator[None]:
    """One compute thread, like a rank's, whose sums are in the same order; the caller's random numbers stay."""
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        yield
