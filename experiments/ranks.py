"""The ranks of a command: local workers, or those of the torchrun job that it runs in."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mqgrad.trainers.clusters.clock import ModelClock
from mqgrad.trainers.clusters.distributed import Distributed
from mqgrad.trainers.clusters.torchrun_ranks import check_torchrun, on_rank_0

_T = TypeVar("_T")


def under_torchrun() -> bool:
    """Whether this process is a rank of a torchrun job."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    """Of this process in the torchrun job; 0 outside.

    Raises:
        RuntimeError: torchrun's environment is not complete.
    """
    if not under_torchrun():
        return 0
    check_torchrun()
    return int(os.environ["RANK"])


def world_size(num_workers: int) -> int:
    """Ranks of the torchrun job; outside, as many as local workers are wanted."""
    return int(os.environ["WORLD_SIZE"]) if under_torchrun() else num_workers


def read_once(read: Callable[[], _T]) -> _T:
    """What ``read`` returns; in a torchrun job only rank 0 reads, and the other ranks need no copy of its files."""
    return on_rank_0(read) if under_torchrun() else read()


@contextlib.contextmanager
def open_cluster(
    workload: str,
    settings: dict[str, Any],
    num_workers: int,
    timeout_seconds: float = 60.0,
    clock: ModelClock | None = None,
) -> Iterator[Distributed | None]:
    """Local workers, or the ranks of the torchrun job: there, ranks other than 0 serve and then get None."""
    if not under_torchrun():
        with Distributed(
            workload, settings, num_workers=num_workers, clock=clock, timeout_seconds=timeout_seconds
        ) as cluster:
            yield cluster
        return
    cluster = Distributed.from_torchrun(workload, settings, clock=clock, timeout_seconds=timeout_seconds)
    if rank() == 0:
        with cluster:
            yield cluster
    else:
        cluster.serve()
        yield None
