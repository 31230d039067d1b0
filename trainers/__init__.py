"""Workloads, and clusters of ranks that train them."""

from .clock import ModelClock
from .cluster import Cluster, ControllerSpec
from .distributed import Distributed
from .errors import ReplicaMismatchError, WorkerError
from .link import LinkEmulation
from .workload import Batch, Workload, make_workload, register_workload, workload_names

__all__ = [
    "Batch",
    "Cluster",
    "ControllerSpec",
    "Distributed",
    "LinkEmulation",
    "ModelClock",
    "ReplicaMismatchError",
    "WorkerError",
    "Workload",
    "make_workload",
    "register_workload",
    "workload_names",
]
