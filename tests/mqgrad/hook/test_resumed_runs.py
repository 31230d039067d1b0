"""An interrupted run goes on from its checkpoint as if nothing had happened, whatever decides and compresses."""

import struct
import zlib
from collections.abc import Callable

import averages
import pytest
from frozen_moments import new_adam_run
from models import Run, new_run
from ranks import run_cases
from scripted import Listed, Scripted

import mqgrad
from mqgrad.statistics.interval import IntervalStatistics

BY_PARAMETER = ([1, 8, 2, 32, 4, 16, 3, 5], [32, 2, 2, 2, 8, 8, 1, 32], 2, [3] * 8)
"""Decisions for the eight parameters of the model: among them a single width, and one width for each of them."""


class Sensitive(Scripted):
    """Decides by the last digits of what it is told of the gradient."""

    def decide(self, statistics: IntervalStatistics) -> int:
        super().decide(statistics)
        figures = (statistics.gradient_signal, statistics.gradient_noise, statistics.peak_energy)
        return (2, 4, 8)[zlib.crc32(struct.pack("3d", *figures)) % 3]


def by_parameter(compressor: str, decisions: tuple = BY_PARAMETER) -> tuple[Callable[[], Run], int, int]:
    """Its first iteration after the restart is one at which the gains of feedback are measured."""
    controller = lambda: Scripted(decisions, first=4, wants_parameters=True)  # noqa: E731
    return lambda: new_run(controller(), compressor=compressor), 5, 8


def of_periods() -> Run:
    return new_run(Scripted([2, 4, 1, 16]), period=3, period_rule=Listed(2, 5, 1), slow_momentum=0.3)


def in_rounds() -> Run:
    return new_run(Scripted([2, 4, 1, 16]), period=6, slow_momentum=0.3, variance_reduced=True)


RUNS: dict[str, tuple[Callable[[], Run], int, int]] = {
    # how it begins, the iterations before the checkpoint, mostly in the middle of an interval, and those after it
    "widths": (lambda: new_run(Scripted([2, 4, 8, 1, 16])), 5, 10),
    "32 bits among others": (lambda: new_run(Scripted([2, 4, 32, 1, 16])), 5, 10),
    "one width": (lambda: new_run(Scripted([1])), 5, 10),
    "an early first decision": (lambda: new_run(Scripted([2, 4, 8, 1, 16], opening=1)), 5, 10),
    "decisions by the gradient": (lambda: new_run(Sensitive([4])), 5, 10),
    "widths by parameter": by_parameter("quantized"),
    "widths by parameter, QSGD": by_parameter("qsgd"),
    "widths by parameter, a star": by_parameter("qsgd:error_feedback=true,topology=star"),
    "widths by parameter, ECQ-SGD": by_parameter("ecq-sgd", BY_PARAMETER[:2]),
    "stochastic rounding": by_parameter("quantized:rounding=stochastic", (2, 3, 4)),
    "the end of a warm-up": (
        lambda: new_run(mqgrad.FixedBits(1), compressor="onebit-adam:warmup_iterations=5"),
        3,
        5,
    ),
    "a frozen second moment": (lambda: new_adam_run(Scripted([1], interval=5)), 18, 9),
    "a frozen second moment, widths": (lambda: new_adam_run(Scripted([1, 8, 2], interval=5)), 18, 9),
    "the first round": (in_rounds, 3, 16),
    "between two rounds": (in_rounds, 6, 16),
    "the middle of a round": (in_rounds, 8, 16),
    **{f"rounds by a rule, {before}": (of_periods, before, 16) for before in (7, 9, 12)},
}
LOCAL = (in_rounds, of_periods)


def straight_and_resumed(rank: int, name: str) -> tuple[list[bytes], list[bytes]]:
    start, before, after = RUNS[name]
    return averages.straight_and_resumed(start, rank, before, after)


@pytest.fixture(scope="module")
def on_two_ranks() -> dict[tuple, tuple]:
    return run_cases(straight_and_resumed, [(name,) for name in RUNS], timeout=100)


def check(results: tuple, name: str) -> None:
    assert all(straight == resumed for straight, resumed in results)
    if RUNS[name][0] not in LOCAL:  # where gradients are the ranks' own
        assert len({tuple(straight) for straight, _ in results}) == 1


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_goes_on_with_the_same_bytes(on_two_ranks: dict[tuple, tuple], name: str) -> None:
    """DDP starts the resumed run with other buckets than the straight run has by then."""
    check(on_two_ranks[name,], name)


def test_an_interrupted_run_on_four_ranks_goes_on_with_the_same_bytes() -> None:
    """Without 32 bits, DDP's own all-reduce, whose order of summation over more than two ranks depends on the
    bucket."""
    check(run_cases(straight_and_resumed, [("widths",)], 4)["widths",], "widths")
