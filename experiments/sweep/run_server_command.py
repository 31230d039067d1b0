"""The command ``mqgrad serve-runs``, which ``mqgrad compare`` starts."""

import sys

from mqgrad.trainers.signals import end_with_parent

from ..options import TimeoutSeconds, Workers, WorkloadName, WorkloadSettings


def serve_runs(
    workload: WorkloadName,
    settings: WorkloadSettings = [],  # noqa: B006 (typer reads the default, nothing changes it)
    num_workers: Workers = 2,
    timeout_seconds: TimeoutSeconds = 60.0,
) -> None:
    """Carry out the runs that are asked for on standard input, one JSON object a line, until its end."""
    end_with_parent()  # else the run that goes on would take the cores from those of a resumed comparison
    import torch

    from ..ranks import open_cluster
    from ..settings import parse_settings
    from .run_server import serve_runs as serve

    torch.set_num_threads(1)  # whatever OMP_NUM_THREADS is where a sweep goes on
    with open_cluster(workload, parse_settings(settings), num_workers, timeout_seconds) as cluster:
        if cluster is not None:  # rank 0 of a torchrun job; the others serve it
            serve(cluster, sys.stdin)
