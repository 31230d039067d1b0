"""Workloads whose smoothness is known, and the compressor that uses it."""

from typing import Protocol, runtime_checkable

import torch

from mqgrad.compressors import Compressor, Smoothness, make_compressor

from .workload import Workload


@runtime_checkable
class SmoothWorkload(Protocol):
    """A workload such as ``logreg``."""

    def smoothness_matrix(self, rank: int, world_size: int) -> torch.Tensor:
        """Of one rank's part of the objective: float64 [d, d]."""
        ...


def compressor_for(workload: Workload, spec: str, world_size: int) -> Compressor:
    """The compressor of a run: ``make_compressor(spec)``, told the workload's smoothness if it uses it.

    Raises:
        ValueError: it needs smoothness matrices, and the workload has none.
    """
    compressor = make_compressor(spec)
    if isinstance(compressor, Smoothness):
        if not isinstance(workload, SmoothWorkload):
            raise ValueError(
                f"compressor {spec!r} needs smoothness matrices, which workload {workload.name!r} does not have: "
                "train logreg, or give the workload a method smoothness_matrix(rank, world_size)"
            )
        compressor.use_smoothness(
            [workload.smoothness_matrix(rank, world_size) for rank in range(world_size)]
        )
    return compressor
