"""Threads that communicate do not interrupt others; those of the script stay as they are."""

import os
import pathlib
import threading

import pytest
from ranks import run_ranks

from mqgrad.collectives.batch_threads import as_batch_thread, be_batch_thread
from mqgrad.collectives.comm_thread import CommThread
from mqgrad.collectives.own_group import destroy, own_group


def policies_of_threads() -> dict[int, int]:
    """By the threads' numbers."""
    numbers = (int(task.name) for task in pathlib.Path("/proc/self/task").iterdir())
    return {number: os.sched_getscheduler(number) for number in numbers}


def in_thread(act) -> object:
    """What it returns on a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    thread.join()
    return results[0]


def test_the_threads_of_our_group_and_of_the_hook_are_batch_threads() -> None:
    def rank_main(rank: int) -> tuple[set[int], set[int], int]:
        before = policies_of_threads()
        group = own_group(None, 10.0)
        after = policies_of_threads()
        new = {after[number] for number in after.keys() - before.keys()}
        same = {after[number] for number in after.keys() & before.keys()}
        thread, seen = CommThread(), []
        thread.run(lambda: seen.append(os.sched_getscheduler(0)))
        thread.close()
        destroy(group)
        return new, same, seen[0]

    expected = ({os.SCHED_BATCH}, {os.SCHED_OTHER}, os.SCHED_BATCH)
    assert run_ranks(rank_main, 2) == [expected] * 2


def test_a_thread_starts_others_like_itself_within_the_block_alone() -> None:
    def act() -> list[object]:
        with as_batch_thread():
            inside = in_thread(lambda: os.sched_getscheduler(0))
        return [inside, os.sched_getscheduler(0)]

    assert in_thread(act) == [os.SCHED_BATCH, os.SCHED_OTHER]


def test_what_somebody_has_chosen_stays() -> None:
    def act() -> list[object]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with as_batch_thread():
            inside = os.sched_getscheduler(0)
        return [be_batch_thread(), inside, os.sched_getscheduler(0)]

    assert in_thread(act) == [False, os.SCHED_IDLE, os.SCHED_IDLE]


@pytest.mark.parametrize("refusal", [PermissionError(1, "Operation not permitted"), AttributeError()])
def test_a_system_that_refuses_is_let_have_its_way(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    def refuse(*arguments: object) -> None:
        raise refusal

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with as_batch_thread():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    thread, seen = CommThread(), []
    thread.run(lambda: seen.append(os.sched_getscheduler(0)))
    thread.close()
    assert seen == [os.SCHED_OTHER]
