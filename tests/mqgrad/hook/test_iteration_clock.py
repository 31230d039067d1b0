"""Seconds of iterations, and how many of them a training loop waits."""

import functools
import time
from collections.abc import Callable

import pytest
import torch

from mqgrad import stopwatch
from mqgrad.hook.iteration_clock import IterationClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> IterationClock:
    """On a clock that stands still but for :func:`passes`."""
    monkeypatch.setattr(time, "perf_counter", lambda: _NOW[0])
    _NOW[0] = 100.0
    clock = IterationClock()
    clock.start()
    return clock


_NOW = [0.0]


def passes(seconds: float) -> None:
    _NOW[0] += seconds


def seconds_of(clock: IterationClock, *, communicated: bool) -> tuple[float, float]:
    costs = clock.lap(communicated)
    assert costs is not None
    return costs.step_seconds, costs.compute_seconds


def test_what_blocks_is_no_computing_in_any_iteration(clock: IterationClock) -> None:
    for communicated in (False, True):
        passes(3.0)
        with clock.blocked():
            passes(1.0)
        assert seconds_of(clock, communicated=communicated) == (4.0, 3.0)
    assert clock.seconds == 8.0
    passes(2.0)
    assert seconds_of(clock, communicated=False) == (2.0, 2.0)


def test_a_pause_takes_along_what_was_waited_before_it(clock: IterationClock) -> None:
    with clock.blocked():
        passes(5.0)
    clock.start()
    passes(2.0)
    assert seconds_of(clock, communicated=True) == (2.0, 2.0)


def test_waiting_is_what_is_longer(clock: IterationClock) -> None:
    """The bucket under way lies within what blocks a round's end."""
    passes(1.0)
    with clock.blocked():
        passes(0.5)
        clock.begin_wait(torch.device("cpu"))
        passes(2.0)
        clock.end_wait()
    assert seconds_of(clock, communicated=True) == (3.5, 1.0)


def test_the_waits_of_several_backwards_add_up(clock: IterationClock) -> None:
    """As of a GAN's discriminator; only the last one's counted, so that links seemed faster than they are."""
    for _ in range(2):
        passes(3.0)
        clock.begin_wait(torch.device("cpu"))
        passes(1.0)
        clock.end_wait()
    assert seconds_of(clock, communicated=True) == (8.0, 6.0)
    passes(3.0)
    clock.begin_wait(torch.device("cpu"))
    passes(1.0)
    clock.end_wait()
    assert seconds_of(clock, communicated=True) == (4.0, 3.0)


def test_an_iteration_that_sent_nothing_waited_for_nothing(clock: IterationClock) -> None:
    """As one whose backwards are all under ``no_sync()``; it was charged what the one before it had waited."""
    passes(1.0)
    clock.begin_wait(torch.device("cpu"))
    passes(2.0)
    clock.end_wait()
    assert seconds_of(clock, communicated=True) == (3.0, 1.0)
    passes(3.0)
    assert seconds_of(clock, communicated=True) == (3.0, 3.0)


def test_waits_that_are_known_late_count_for_all_backwards_of_an_iteration(
    clock: IterationClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the second backward's is not known before the next iteration."""
    late: list[Callable[[], None]] = []
    monkeypatch.setattr(
        stopwatch, "since", lambda start, add: late.append(functools.partial(add, _NOW[0] - start))
    )

    def iteration(first: float, second: float) -> tuple[float, float]:
        for waited in (first, second):
            clock.begin_wait(torch.device("cpu"))
            passes(waited)
            clock.end_wait()
            while len(late) > 1:
                late.pop(0)()
        return seconds_of(clock, communicated=True)

    iteration(1.0, 2.0)
    assert iteration(4.0, 4.0) == (8.0, 5.0)  # by the waits of the first
    assert iteration(1.0, 1.0) == (2.0, 0.0)


def test_the_first_iteration_without_a_start_is_not_known() -> None:
    clock = IterationClock()
    with clock.blocked():
        time.sleep(0.05)
    assert clock.lap() is None
    time.sleep(0.01)
    second = clock.lap()
    assert second is not None
    assert second.compute_seconds >= 0.01  # what was waited for in the first is not taken off
