"""Workloads, and clusters of ranks that train them."""

from .clusters.clock import ModelClock
from .clusters.cluster import Cluster, ControllerSpec
from .clusters.distributed import Distributed
from .clusters.errors import ReplicaMismatchError, WorkerError
from .clusters.simulated import Simulated, calibrate
from .link import LinkEmulation
from .workloads.workload import Batch, Workload, make_workload, register_workload, workload_names

__all__ = [
    "Batch",
    "Cluster",
    "ControllerSpec",
    "Distributed",
    "LinkEmulation",
    "ModelClock",
    "ReplicaMismatchError",
    "Simulated",
    "WorkerError",
    "Workload",
    "calibrate",
    "make_workload",
    "register_workload",
    "workload_names",
]
