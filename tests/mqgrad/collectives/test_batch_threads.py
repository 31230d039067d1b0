"""Threads that communicate do not interrupt others; those of the script stay as they are."""

import contextlib
import importlib
import os
import pathlib
import threading
from collections.abc import Callable

import pytest
import torch
from ranks import run_ranks

from mqgrad.collectives import batch_threads
from mqgrad.collectives.batch_threads import be_batch_thread, starting_batch_threads
from mqgrad.collectives.comm_thread import CommThread
from mqgrad.collectives.own_group import own_group
from mqgrad.collectives.process_group import ProcessGroupTransport


def in_thread(act: Callable[[], object]) -> object:
    """What it returns on a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    thread.join()
    return results[0]


needs_scheduling = pytest.mark.skipif(
    not in_thread(be_batch_thread),
    reason="threads are scheduled in another way here, or it cannot be changed",
)


def policies_of_threads() -> dict[int, int]:
    """By the threads' numbers."""
    policies = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            policies[int(task.name)] = os.sched_getscheduler(int(task.name))
    return policies


@needs_scheduling
def test_the_threads_of_our_group_and_of_the_hook_are_batch_threads() -> None:
    def rank_main(rank: int) -> tuple[set[int], set[int], int]:
        before = policies_of_threads()
        transport = ProcessGroupTransport(own_group(None, 10.0))
        transport.all_reduce_(torch.zeros(1))
        after = policies_of_threads()
        new = {after[number] for number in after.keys() - before.keys()}
        same = {after[number] for number in after.keys() & before.keys()}
        thread = CommThread()
        of_hook = thread.run(lambda: os.sched_getscheduler(0))
        thread.close()
        transport.close()
        return new, same, of_hook

    expected = ({os.SCHED_BATCH}, {os.SCHED_OTHER}, os.SCHED_BATCH)
    assert run_ranks(rank_main, 2) == [expected] * 2


@needs_scheduling
@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_starts_others_as_batch_threads_within_the_block_alone(fails: bool) -> None:
    def act() -> list[object]:
        with contextlib.suppress(ValueError), starting_batch_threads():
            inside = in_thread(lambda: os.sched_getscheduler(0))
            if fails:
                raise ValueError
        return [inside, os.sched_getscheduler(0), in_thread(lambda: os.sched_getscheduler(0))]

    assert in_thread(act) == [os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_OTHER]


def test_what_somebody_has_chosen_stays() -> None:
    def act() -> list[object]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with starting_batch_threads():
            inside = os.sched_getscheduler(0)
        return [be_batch_thread(), inside, os.sched_getscheduler(0)]

    assert in_thread(act) == [False, os.SCHED_IDLE, os.SCHED_IDLE]


def seen_by_a_hooks_thread() -> int:
    thread = CommThread()
    with starting_batch_threads():
        seen = thread.run(lambda: os.sched_getscheduler(0))
    thread.close()
    return seen


def test_a_system_that_refuses_is_let_have_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    before = os.sched_getscheduler(0)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert seen_by_a_hooks_thread() == before


def test_a_system_without_such_scheduling_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_setscheduler", "sched_param", "SCHED_OTHER", "SCHED_BATCH"):
        monkeypatch.delattr(os, name)
    importlib.reload(batch_threads)
    assert seen_by_a_hooks_thread() == os.sched_getscheduler(0)
