"""Run a function on several real ranks, each a forked process with a Gloo group."""

import datetime
import multiprocessing
import multiprocessing.connection
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # DDP imports it lazily: once here instead of once per rank
import torch.distributed as dist

_FORK = multiprocessing.get_context("fork")  # no pickling of test functions, no second import of torch


def run_ranks(function: Callable[[int], Any], world_size: int = 2, timeout: float = 60.0) -> list[Any]:
    """Call ``function(rank)`` on every rank and return the results by rank.

    A rank that raises fails the test with its traceback, one that ends without a result with its exit code; one that
    does neither within ``timeout`` seconds is killed and fails it too. What all of them told is shown.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_FORK.Pipe(duplex=False) for _ in range(world_size)]
        processes = [
            _FORK.Process(target=_main, args=(function, rank, world_size, Path(folder), pipes[rank][1]))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        try:
            outcomes = _outcomes(processes, [receiver for receiver, _ in pipes], timeout)
        finally:
            for process in processes:
                process.join(timeout=2)
                process.kill()
    # All of them: the rank that raised first is often not the one whose peer went away.
    failures = [f"rank {rank} {told}" for rank, (ok, told) in enumerate(outcomes) if not ok]
    if failures:
        pytest.fail("\n".join(failures))
    return [value for _, value in outcomes]


def run_cases(
    function: Callable[..., Any], cases: Sequence[tuple], world_size: int = 2, timeout: float = 60.0
) -> dict[tuple, tuple]:
    """Call ``function(rank, *case)`` for one case after another on the same ranks: results by case, then by rank.

    For cases that are quick beside starting ranks, and leave nothing behind in a process.
    """

    def case_by_case(rank: int) -> list[Any]:
        return [_called(function, rank, case) for case in cases]

    by_rank = run_ranks(case_by_case, world_size, timeout)
    return dict(zip(cases, zip(*by_rank, strict=True), strict=True))


def _called(function: Callable[..., Any], rank: int, case: tuple) -> Any:
    try:
        return function(rank, *case)
    except Exception as error:
        raise AssertionError(f"in the case {case}") from error


def _outcomes(processes: list[Any], pipes: list[Any], timeout: float) -> list[tuple[bool, Any]]:
    deadline = time.monotonic() + timeout
    return [_outcome(*rank, deadline, timeout) for rank in zip(processes, pipes, strict=True)]


def _outcome(process: Any, pipe: Any, deadline: float, timeout: float) -> tuple[bool, Any]:
    multiprocessing.connection.wait([pipe, process.sentinel], max(0.0, deadline - time.monotonic()))
    if not pipe.poll():
        process.join(0)
        return False, f"gave no result within {timeout} s (exit code {process.exitcode})"
    return pickle.loads(pipe.recv_bytes())


def _main(function: Callable[[int], Any], rank: int, world_size: int, folder: Path, pipe: Any) -> None:
    torch.set_num_threads(1)
    try:
        _connect(rank, world_size, folder)
        # By value: send() shares a tensor's memory, which is gone if this rank has ended before it is received.
        pipe.send_bytes(pickle.dumps((True, function(rank))))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, f"failed:\n{traceback.format_exc()}")))
    if dist.is_initialized():
        dist.destroy_process_group()


def _connect(rank: int, world_size: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=30),
    )
    # A rank that has nothing to send may have ended before the others have connected to it, and their errors are all
    # that is seen of it.
    dist.barrier()
