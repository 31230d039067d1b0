"""Policies and fixed widths on the same episodes."""

import pytest
from toy_link import FAST, toy_env, wire_seconds

from mqgrad.agents.evaluate import evaluate, summarize
from mqgrad.controllers import FixedBits
from mqgrad.observation import ObservationSchema


def test_rows_hold_what_the_episode_was() -> None:
    env = toy_env(FAST, budget_seconds=20.0)
    results = evaluate(env, {"fixed:4": FixedBits(4), "fixed:8": FixedBits(8)}, seeds=[1, 2])
    assert [(r.controller, r.seed) for r in results] == [
        ("fixed:4", 1),
        ("fixed:8", 1),
        ("fixed:4", 2),
        ("fixed:8", 2),
    ]
    row = results[0]
    assert row.mean_bits == 4
    assert row.iterations == 2 + 5 * row.decisions
    opening = 2 * wire_seconds(4, FAST) * FAST * 1e6 / 8
    decided = 5 * row.decisions * wire_seconds(4, FAST) * FAST * 1e6 / 8
    assert row.wire_mib == pytest.approx((opening + decided) / 2**20)
    assert row.seconds >= 20.0
    assert not row.diverged


def test_equal_seeds_give_equal_episodes() -> None:
    env = toy_env(FAST, budget_seconds=20.0)
    twice = [evaluate(env, {"a": FixedBits(4)}, seeds=[3]) for _ in range(2)]
    assert repr(twice[0]) == repr(twice[1])


def test_summary_has_the_best_first() -> None:
    env = toy_env(FAST, budget_seconds=40.0)
    rows = summarize(evaluate(env, {"one": FixedBits(1), "eight": FixedBits(8)}, seeds=[1]))
    assert [row["controller"] for row in rows] == ["eight", "one"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="fixed 5 bits"):
        evaluate(toy_env(), {"five": FixedBits(5)}, seeds=[1])
    with pytest.raises(ValueError, match="keep-or-increase"):
        evaluate(toy_env(preset="authors", max_steps=4), {"four": FixedBits(4)}, seeds=[1])
    assert ObservationSchema().size == 20
