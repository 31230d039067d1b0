"""What a closed state answers, and what closing it tells."""

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
import torch
import torch.distributed.distributed_c10d as c10d
from ranks import run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.hook.direct import DirectAverages


@pytest.mark.parametrize("period", [1, 3])
def test_nobody_trains_on_alone_with_a_closed_state(period: int) -> None:
    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=period)
        models.train(model, optimizer, state, rank, range(3))
        state.close()
        calls: dict[str, Callable[[], object]] = {
            "backward": lambda: models.backward(model, rank, 3),
            "step": lambda: state.step(1.0),
            "state_dict": state.state_dict,
            "load_state_dict": lambda: state.load_state_dict({}),
            "drain": state.drain,
        }
        for name, call in calls.items():
            with pytest.raises(
                RuntimeError, match=rf"{name}\(\) on rank {rank}: this CompressionState is closed"
            ):
                call()

    run_ranks(rank_main)


def test_closing_within_a_round_is_told() -> None:
    def rank_main(rank: int) -> list[str]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=3)
        models.train(model, optimizer, state, rank, range(5))
        with pytest.warns(RuntimeWarning, match=f"rank {rank}: closed within a round, after 2 iterations"):
            state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=3)
        models.train(model, optimizer, state, rank, range(6))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state.close()

    run_ranks(rank_main)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_state_that_cannot_be_made_leaves_nothing_open() -> None:
    def rank_main(rank: int) -> list[int]:
        optimizer = torch.optim.SGD(models.small_model().parameters(), lr=0.1, momentum=0.9)
        opened = []
        for _ in range(4):
            with pytest.raises(RuntimeWarning, match="takes a momentum"):
                mqgrad.CompressionState(compressor="dgc:0.05", optimizer=optimizer)
            gc.collect()
            opened.append(len(os.listdir("/proc/self/fd")))
        return opened

    for first, *others in run_ranks(rank_main):
        assert max(others) <= first


def test_a_failure_after_the_last_step_is_told() -> None:
    class Failing(Scripted):
        def decide(self, statistics: object) -> int:
            raise ArithmeticError("no idea")

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(Failing([4, 4], interval=2))
        models.train(model, optimizer, state, rank, range(2))
        with pytest.warns(RuntimeWarning, match="failed before close.*no idea"):
            state.close()

    run_ranks(rank_main)


class Wrong(Scripted):
    def decide(self, statistics: object) -> Any:
        answer = super().decide(statistics)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (AssertionError(), "AssertionError (in decide, "),
        (KeyError(3), "KeyError: 3 (in decide, "),
        (StopIteration(), "StopIteration (in decide, "),
        (RuntimeError("late"), "RuntimeError: late (in decide, "),
        (5.5, "ValueError: bit width 5.5 is not supported"),
    ],
)
def test_what_a_controller_raises_is_told_with_its_type_and_place(answer: object, told: str) -> None:
    def rank_main(rank: int) -> tuple[str, str, object]:
        model, optimizer, state = models.new_run(Wrong([4, answer], interval=2))
        with pytest.raises(RuntimeError) as raised:
            models.train(model, optimizer, state, rank, range(4))
        with pytest.warns(RuntimeWarning) as warned:
            state.close()
        with pytest.raises(RuntimeError) as chained:
            state._thread.check()
        return str(raised.value), str(warned[0].message), type(chained.value.__cause__.__cause__)

    for rank, (text, warning, cause) in enumerate(run_ranks(rank_main)):
        assert f"rank {rank}: Wrong could not decide: {told}" in text
        assert f"rank {rank}: Wrong could not decide: {told}" in warning
        assert cause is (type(answer) if isinstance(answer, Exception) else ValueError)


def test_an_interrupted_close_gives_its_group_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: DirectAverages) -> None:
        raise KeyboardInterrupt

    def rank_main(rank: int) -> None:
        before = len(c10d._world.pg_map)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32))
        monkeypatch.setattr(DirectAverages, "drain", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.close()
        assert len(c10d._world.pg_map) == before
        with pytest.raises(RuntimeError, match="is closed"):
            state.step(1.0)

    run_ranks(rank_main)


ENDING = """
import atexit
import torch
import torch.distributed as dist
import mqgrad

class Failing(mqgrad.FixedBits):
    def decide(self, statistics):
        raise ArithmeticError("no idea")

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
state = mqgrad.CompressionState(Failing(4, interval=1))
atexit.register(state.close)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
ddp.register_comm_hook(state, mqgrad.compression_hook)
for _ in range(2):
    ddp(torch.ones(1, 4)).sum().backward()
    state.step(1.0)
"""


def test_a_failed_state_may_be_closed_where_the_interpreter_ends(tmp_path: Path) -> None:
    """Then no job can be given to its thread any more; the group is to be given back all the same."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert (
        "before close(): rank 0: Failing could not decide: ArithmeticError: no idea (in decide, "
        in ended.stderr
    )
    assert "atexit" not in ended.stderr


LEAVING = """
import sys, time
import torch
import torch.distributed as dist
import mqgrad

rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
model = torch.nn.Sequential(*(torch.nn.Linear(400, 400) for _ in range(12)))
state = mqgrad.CompressionState(mqgrad.FixedBits(32), timeout_seconds=30)
ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3)
ddp.register_comm_hook(state, mqgrad.compression_hook)

def fail(gradient):
    if state.totals.iterations == 5:
        time.sleep(0.05 * rank)
        raise ValueError("of the script")

model[5].weight.register_hook(fail)
for _ in range(6):
    ddp(torch.ones(1, 400)).sum().backward()
    state.step(1.0)
"""


def test_an_exception_that_leaves_the_script_while_sums_are_under_way_is_how_it_ends(tmp_path: Path) -> None:
    """A thread of Gloo called back when there was no interpreter any more, which aborted the process."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVING, str(rank)],
            cwd=tmp_path,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, told = rank.communicate(timeout=60)
        assert (rank.returncode, "ValueError: of the script" in told) == (1, True), told
        assert "terminate called" not in told
