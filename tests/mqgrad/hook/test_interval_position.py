"""Where in its interval a run is, without a run around it."""

import math

import pytest

from mqgrad.compressors import make_compressor
from mqgrad.controllers import FixedBits
from mqgrad.hook.decisions import Decisions
from mqgrad.hook.interval_position import IntervalPosition


def position(controller: FixedBits | None, interval: int = 3) -> IntervalPosition:
    """Past the first iterations, in which all is checked, at the beginning of an interval."""
    decisions = Decisions(controller, None, make_compressor("quantized"), period=1)
    decisions.interval = interval
    begun = IntervalPosition(decisions)
    for _ in range(3):
        assert begun.is_check_due
        begun.close()
    begun.restart(begun.reported)
    return begun


def iterate(at: IntervalPosition, times: int, *, reported: bool = True) -> None:
    for _ in range(times):
        at.close()
        if reported:
            at.report()


def test_with_a_controller_the_ranks_check_where_an_interval_ends() -> None:
    at = position(FixedBits(4, interval=3))
    for number in range(3):
        assert (at.is_check_due, at.is_decision_due(at.reported), at.is_last) == (False, False, number == 2)
        iterate(at, 1)
    assert at.is_check_due
    assert at.is_decision_due(at.reported)
    at.restart(at.reported)
    assert not (at.is_check_due)
    assert not (at.is_decision_due(at.reported))


def test_what_is_reported_while_another_thread_decides_counts_in_the_next_interval() -> None:
    at = position(FixedBits(4, interval=3))
    iterate(at, 3)
    compared = at.reported
    at.report()
    assert at.is_decision_due(compared)
    at.restart(compared)
    assert at.reported == 1
    assert not at.is_decision_due(at.reported)


def test_a_rank_that_forgets_to_report_checks_with_the_others_and_does_not_decide() -> None:
    """Its check tells them apart; a decision would exchange rows of losses that it does not have."""
    at = position(FixedBits(4, interval=3))
    iterate(at, 3, reported=False)
    assert at.is_check_due
    assert not at.is_decision_due(at.reported)


def test_without_a_controller_only_what_is_announced_goes_unchecked() -> None:
    at = position(None)
    assert at.is_check_due
    assert not at.is_settled
    at.announce(2)
    assert at.is_check_due
    assert at.is_settled
    iterate(at, 1)
    assert not at.is_check_due
    iterate(at, 1)
    assert at.is_check_due
    assert not at.is_settled
    iterate(at, 3)
    assert not at.is_decision_due(at.reported)  # nobody decides


def test_a_loaded_position_goes_on_and_checks_anew() -> None:
    at, other = position(FixedBits(4, interval=3)), position(FixedBits(4, interval=3))
    iterate(at, 2)
    other.load_state_dict(at.state_dict())
    other.recheck()
    assert (other.closed, other.reported, other.is_last) == (2, 2, True)
    assert other.is_check_due
    assert not at.is_check_due


@pytest.mark.parametrize("backwards", [1, 2, 3])
def test_with_several_backwards_a_step_few_of_them_check_and_none_decides_late(backwards: int) -> None:
    interval = 64
    at = position(FixedBits(4, interval=interval), interval)
    checks = 0

    def open_iteration() -> bool:
        """As :meth:`mqgrad.hook.iteration.Iteration.open` does; returns whether a decision is due."""
        nonlocal checks
        if not at.is_check_due:
            return False
        checks += 1
        at.put_off_check(at.reported)
        return at.is_decision_due(at.reported)

    for step in range(interval):
        for _ in range(backwards):
            assert not open_iteration(), step
            at.close()
        at.report()
    assert open_iteration()
    assert checks <= 1 + backwards * math.log2(interval)
