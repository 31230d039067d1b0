"""Two ways of which each iteration shows one: what is known of either, and when that has become wrong."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqgrad.statistics.two_ways import Block, TwoWays
from mqgrad.widths import WIDTHS


def block(seconds: float, iterations: int = 8) -> Block:
    """Of iterations that differ by a twentieth."""
    return Block.of([math.log(seconds) + 0.05 * (-1) ** i for i in range(iterations)])


def after(*blocks: tuple[float, int, Block]) -> TwoWays:
    ways = TwoWays()
    for bits, way, each in blocks:
        ways.learn(bits, way, each)
    return ways


def test_each_is_tried_once_and_then_the_faster_comes_next() -> None:
    ways = TwoWays()
    assert [ways.next(4, way, 0.0) for way in (0, 1)] == [0, 1]
    ways.learn(4, 0, block(0.02))
    assert ways.next(4, 0, 0.0) == 1
    ways.learn(4, 1, block(0.03))
    assert ways.next(4, 1, 0.0) == 0
    assert ways.next(4, 0, 1.0) == 1  # 0 makes less progress
    assert ways.next(2, 1, 0.0) == 1  # of another width nothing is known


def test_what_has_long_not_been_tried_is_tried_again() -> None:
    ways = after((4, 0, block(0.02)), (4, 1, block(0.022)))
    tried, way = [], 0
    for _ in range(400):
        way = ways.next(4, way, 0.0)
        tried.append(way)
        ways.learn(4, way, block(0.022 if way else 0.02))
    assert 0 < sum(tried) < 80


def test_after_a_change_the_other_way_comes_next() -> None:
    ways = after(*[(4, way, block(seconds)) for _ in range(20) for way, seconds in enumerate((0.02, 0.1))])
    assert ways.next(4, 0, 0.0) == 0
    assert ways.learn(4, 0, block(0.021))  # within a tenth
    assert not ways.learn(4, 0, block(0.03))
    assert ways.next(4, 0, 0.0) == 0  # to be measured after the change alone
    assert ways.learn(4, 0, block(0.04))
    assert ways.next(4, 0, 0.0) == 1
    assert ways.learn(4, 1, block(0.03))
    assert ways.next(4, 1, 0.0) == 1


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
    ways, loaded = after(*before), TwoWays()
    loaded.load_state_dict(ways.state_dict())
    for bits, way, each in then:
        assert ways.learn(bits, way, each) == loaded.learn(bits, way, each)
        assert ways.next(bits, way, handicap) == loaded.next(bits, way, handicap)
    assert loaded.state_dict() == ways.state_dict()


def test_a_saved_state_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks ways"):
        TwoWays().load_state_dict({"noise": (1.0, 1.0)})
