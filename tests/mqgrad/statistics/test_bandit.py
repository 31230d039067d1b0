"""Two arms of which each iteration shows one: what is known of either, and when that has become wrong."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqgrad.statistics.bandit import Block, TwoArmedBandit
from mqgrad.widths import WIDTHS


def block(seconds: float, iterations: int = 8) -> Block:
    """Of iterations that differ by a twentieth."""
    return Block.of([math.log(seconds) + 0.05 * (-1) ** i for i in range(iterations)])


def after(*blocks: tuple[float, int, Block]) -> TwoArmedBandit:
    bandit = TwoArmedBandit()
    for bits, arm, each in blocks:
        bandit.learn(bits, arm, each)
    return bandit


def test_each_is_tried_once_and_then_the_faster_comes_next() -> None:
    bandit = TwoArmedBandit()
    assert [bandit.next(4, arm, 0.0) for arm in (0, 1)] == [0, 1]
    bandit.learn(4, 0, block(0.02))
    assert bandit.next(4, 0, 0.0) == 1
    bandit.learn(4, 1, block(0.03))
    assert bandit.next(4, 1, 0.0) == 0
    assert bandit.next(4, 0, 1.0) == 1  # 0 makes less progress
    assert bandit.next(2, 1, 0.0) == 1  # of another width nothing is known


def test_what_has_long_not_been_tried_is_tried_again() -> None:
    bandit = after((4, 0, block(0.02)), (4, 1, block(0.022)))
    tried, arm = [], 0
    for _ in range(400):
        arm = bandit.next(4, arm, 0.0)
        tried.append(arm)
        bandit.learn(4, arm, block(0.022 if arm else 0.02))
    assert 0 < sum(tried) < 80


def test_after_a_change_the_other_arm_comes_next() -> None:
    bandit = after(*[(4, arm, block(seconds)) for _ in range(20) for arm, seconds in enumerate((0.02, 0.1))])
    assert bandit.next(4, 0, 0.0) == 0
    assert bandit.learn(4, 0, block(0.021))  # within a tenth
    assert not bandit.learn(4, 0, block(0.03))
    assert bandit.next(4, 0, 0.0) == 0  # to be measured after the change alone
    assert bandit.learn(4, 0, block(0.04))
    assert bandit.next(4, 0, 0.0) == 1
    assert bandit.learn(4, 1, block(0.03))
    assert bandit.next(4, 1, 0.0) == 1


def test_a_pause_counts_as_little_more_than_a_slow_iteration() -> None:
    usual, paused = Block.of([0.0] * 9), Block.of([0.0] * 8 + [7.0])
    assert paused.iterations == usual.iterations
    assert 0 < paused.sum - usual.sum <= 0.3
    assert paused.squares < 0.1
    assert Block.of([0.0, 7.0]).sum <= 0.3
    assert Block.of([]).iterations == 0


LOGS = st.lists(st.floats(-20, 20), max_size=64)
BLOCKS = st.tuples(st.sampled_from([0, *WIDTHS]), st.integers(0, 1), LOGS.map(Block.of))


@given(st.lists(BLOCKS, max_size=30), st.lists(BLOCKS, max_size=10), st.floats(-5, 5))
def test_a_saved_state_goes_on_as_it_was(
    before: list[tuple[float, int, Block]], then: list[tuple[float, int, Block]], handicap: float
) -> None:
    bandit, loaded = after(*before), TwoArmedBandit()
    loaded.load_state_dict(bandit.state_dict())
    for bits, arm, each in then:
        assert bandit.learn(bits, arm, each) == loaded.learn(bits, arm, each)
        assert bandit.next(bits, arm, handicap) == loaded.next(bits, arm, handicap)
    assert loaded.state_dict() == bandit.state_dict()


def test_a_saved_state_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks arms"):
        TwoArmedBandit().load_state_dict({"noise": (1.0, 1.0)})
