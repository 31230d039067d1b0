"""Workloads, and clusters of ranks that train them."""

from .clock import ModelClock
from .cluster import Cluster, ControllerSpec
from .distributed import Distributed
from .errors import ReplicaMismatchError, WorkerError
from .link import LinkEmulation
from .simulated import Simulated, calibrate
from .workload import Batch, Workload, make_workload, register_workload, workload_names

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
