"""The workers behind an environment, which outlive a failed episode."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gymnasium.error import ResetNeeded

from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.trainers.clusters.cluster import Cluster, Restartable
from mqgrad.trainers.clusters.distributed import Distributed
from mqgrad.trainers.clusters.errors import EPISODE_LOST, WorkerError
from mqgrad.trainers.clusters.simulated import Simulated
from mqgrad.trainers.link import LinkEmulation
from mqgrad.trainers.methods import DEFAULT_METHOD
from mqgrad.trainers.workloads.workload import make_workload
from mqgrad.widths import Width

from .settings import BitWidthSettings

Result = TypeVar("Result")

_DRIVERS: "WeakValueDictionary[int, RecoveringCluster]" = WeakValueDictionary()
"""By the id of a cluster, who began its current run. An entry lasts as long as that driver, which holds the cluster,
so that no other object can have the id."""


class RecoveringCluster:
    """A cluster that is started when it is first needed, and anew after it has failed or was interrupted.

    Args:
        settings: what to start.
        cluster: one of the caller's to use instead; it is not closed.
    """

    def __init__(self, settings: BitWidthSettings, cluster: Cluster | None) -> None:
        self._settings = settings
        self._owned = cluster is None
        self.cluster = cluster
        """None before it is needed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "RecoveringCluster":
        """Of a copied environment: it starts workers of its own, unless they are the caller's."""
        return RecoveringCluster(self._settings, None if self._owned else self.cluster)

    def reset(self, seed: int, link: LinkEmulation | None) -> None:
        """Begin a run on workers that are ready.

        Raises:
            WorkerError: a worker died or hangs.
        """
        cluster = self._ready()
        before = _DRIVERS.get(id(cluster), self)
        _DRIVERS[id(cluster)] = self
        period = self._settings.period
        method = f"ddp:period={period}" if period > 1 else DEFAULT_METHOD
        try:
            self._guard(
                lambda: cluster.reset(seed, link=link, compressor=self._settings.compressor, method=method)
            )
        except ValueError:  # a mistake, and the run before goes on
            _DRIVERS[id(cluster)] = before
            raise

    def run(self, rounds: int, bits: Width) -> IntervalStatistics:
        """Train at a width, for rounds of ``period`` iterations.

        Raises:
            ResetNeeded: on a cluster that several environments share, another one has begun a run since; or the
                environment is a copy.
            WorkerError: a worker died or hangs; ``reset`` starts new ones.
        """
        cluster = self._begun()
        return self._guard(lambda: cluster.run(rounds * self._settings.period, bits=bits))

    def evaluate(self) -> dict[str, float]:
        """Held-out figures of the model as it is; raises as :meth:`run`."""
        return self._guard(self._begun().evaluate)

    def _begun(self) -> Cluster:
        """The cluster, on which this is who began the current run."""
        cluster = self.cluster
        if cluster is None or _DRIVERS.get(id(cluster)) is not self:
            raise ResetNeeded(
                "another environment has begun an episode on the same cluster, where only one run can be at a time, "
                "or this one is a copy, which has none: call reset() to begin anew, or give each environment a "
                "cluster of its own"
            )
        return cluster

    def close(self) -> None:
        """Stop the workers, unless they are the caller's."""
        if self._owned and self.cluster is not None:
            _DRIVERS.pop(id(self.cluster), None)
            self.cluster.close()
            self.cluster = None

    def _ready(self) -> Cluster:
        """The cluster, started or restarted if need be."""
        if self.cluster is None:
            self.cluster = _open_cluster(self._settings)
        elif (
            isinstance(self.cluster, Restartable) and self.cluster.can_restart and self.cluster.needs_restart
        ):
            self.cluster.restart()
        return self.cluster

    def _guard(self, call: Callable[[], Result]) -> Result:
        """Call the cluster; where a failure ends, say that ``reset`` restarts it."""
        try:
            return call()
        except WorkerError as error:
            if not (isinstance(self.cluster, Restartable) and self.cluster.can_restart):
                raise
            raise WorkerError(error.rank, error.reason, error.details, EPISODE_LOST) from error


def settings_of_cluster(
    cluster: Cluster, settings: BitWidthSettings, given: dict[str, Any]
) -> BitWidthSettings:
    """The settings that hold where the cluster is the caller's: its own workload, workers and clock.

    Args:
        given: arguments that the caller has given.

    Raises:
        ValueError: another clock or workload has been given than the cluster has.
    """
    own: dict[str, Any] = {"num_workers": cluster.world_size, "simulated": isinstance(cluster, Simulated)}
    name, held = getattr(cluster.workload, "name", settings.workload), _settings_of(cluster.workload)
    if "workload" not in given:
        own["workload"] = name
    else:
        _check_name(settings, name)
    _check_held(settings.workload_settings or {}, cluster.workload)
    own["workload_settings"] = held
    clock = getattr(cluster, "clock", settings.clock)
    if settings.clock not in (None, clock):
        raise ValueError(f"clock {settings.clock} is not that of the cluster, {clock}: leave it out")
    return dataclasses.replace(settings, clock=clock, **own)


def _check_name(settings: BitWidthSettings, name: str) -> None:
    given = make_workload(settings.workload, **settings.workload_settings or {})
    if given.name != name:
        raise ValueError(f"workload {settings.workload!r} is not that of the cluster, {name!r}: leave it out")


def _check_held(given: dict[str, Any], workload: Any) -> None:
    held = _settings_of(workload)
    if not given or held is None:
        return
    # As the workload itself would hold them: of a list, a tuple.
    if not given.keys() <= held.keys() or _settings_of(dataclasses.replace(workload, **given)) != held:
        raise ValueError(f"workload_settings {given} are not those of the cluster, {held}: leave them out")


def with_all_settings(settings: BitWidthSettings) -> BitWidthSettings:
    """With those settings of the workload, too, that were not given; as they are where it is no dataclass, or where
    its name means nothing, as that of a cluster's own may."""
    try:
        workload = make_workload(settings.workload, **settings.workload_settings or {})
    except ValueError:
        return settings
    held = _settings_of(workload)
    return settings if held is None else dataclasses.replace(settings, workload_settings=held)


def _settings_of(workload: Any) -> dict[str, Any] | None:
    if not dataclasses.is_dataclass(workload):
        return None
    return {field.name: getattr(workload, field.name) for field in dataclasses.fields(workload) if field.init}


def _open_cluster(settings: BitWidthSettings) -> Cluster:
    kind: Callable[..., Cluster] = Simulated if settings.simulated else Distributed
    return kind(
        settings.workload,
        workload_settings=settings.workload_settings,
        num_workers=settings.num_workers,
        clock=settings.clock,
        timeout_seconds=settings.timeout_seconds,
    )
