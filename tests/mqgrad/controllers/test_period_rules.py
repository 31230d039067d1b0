"""Rounds whose length is decided while the run goes on."""

import dataclasses
import math
from typing import Any

import models
import pytest
import torch
from falling import fallen
from intervals import BASE
from ranks import run_ranks
from scripted import Listed, Scripted

import mqgrad
from mqgrad.controllers.base import Controller
from mqgrad.controllers.period_rules import DelayRatio, PeriodRule, make_period_rule
from mqgrad.hook.decisions import Decisions
from mqgrad.statistics.interval import IntervalStatistics


def after_losses(period: int, *losses: float, seconds: float = 1.0) -> IntervalStatistics:
    """Of an interval of so many seconds."""
    step_seconds = seconds / max(len(losses), 1)
    return dataclasses.replace(BASE, period=period, losses=losses, step_seconds=step_seconds)


def after_seconds(period: int, *, computed: float, waited: float) -> IntervalStatistics:
    """Of one iteration, and of one round."""
    computed *= period
    return dataclasses.replace(
        BASE,
        period=period,
        compute_seconds=computed,
        waited_seconds=waited,
        step_seconds=9.0,
        losses=(1.0,),
    )


def test_adacomm_follows_the_square_root_of_the_loss_and_halves_where_that_does_not_fall() -> None:
    rule = mqgrad.AdaComm(seconds=1.0)
    assert rule.decide(after_losses(16, 4.0, 1.0, 1.0)) == math.ceil(16 * (2 / 4) ** 0.5) == 12
    assert rule.decide(after_losses(12, 1.0, 1.0)) == 8
    assert rule.decide(after_losses(8, 1.0)) == 4  # 8 again
    assert rule.decide(after_losses(4, 4.0, 4.0)) == 2
    assert rule.decide(after_losses(2, math.nan, 1.0)) == 2
    assert rule.decide(after_losses(2)) == 2
    assert rule.decide(after_losses(2, 4.0)) == 1
    assert rule.decide(after_losses(1, 0.01)) == 1


def test_adacomm_waits_for_its_seconds_and_looks_at_all_losses_since() -> None:
    rule = mqgrad.AdaComm(seconds=10)
    assert rule.decide(after_losses(16, 4.0, 4.0, seconds=4)) == 16
    restored = mqgrad.AdaComm(seconds=10)
    restored.load_state_dict(rule.state_dict())
    for each in (rule, restored):
        assert each.decide(after_losses(16, 1.0, 1.0, seconds=6)) == math.ceil(16 * (2.5 / 4) ** 0.5)
        assert each.decide(after_losses(13, 1.0, seconds=9)) == 13


@pytest.mark.parametrize("decay", [0.5, 0.7, 0.95])
def test_adacomm_ends_at_rounds_of_one(decay: float) -> None:
    rule, period = mqgrad.AdaComm(seconds=1, decay=decay), 16
    for _ in range(16):
        period = rule.decide(after_losses(period, 4.0))
    assert period == 1


def test_the_delay_ratio_follows_the_square_root_of_what_an_average_takes() -> None:
    rule = mqgrad.DelayRatio(scale=8, largest=20)
    assert rule.decide(after_seconds(8, computed=0.01, waited=0.01)) == 8
    assert rule.decide(after_seconds(8, computed=0.01, waited=0.02)) == 11
    assert rule.decide(after_seconds(8, computed=0.01, waited=0.04)) == 16
    assert rule.decide(after_seconds(16, computed=0.01, waited=0.40)) == 20
    assert rule.decide(after_seconds(100, computed=0.01, waited=0.40)) == 50
    assert rule.decide(after_seconds(8, computed=0.01, waited=0.0001)) == 4
    assert rule.decide(after_seconds(3, computed=0.01, waited=0.0)) == 2
    assert rule.decide(after_seconds(1, computed=0.01, waited=0.0)) == 1
    for seconds in (math.nan, math.inf, 0.0):
        assert rule.decide(after_seconds(3, computed=seconds, waited=0.01)) == 3


def test_the_delay_ratio_settles_where_an_average_takes_longer_after_longer_rounds() -> None:
    """By what the ranks' iterations differ in length: its square grows with their number."""
    rule, period, seen = mqgrad.DelayRatio(), 1, []
    for _ in range(20):
        waited = 0.002 + 0.003 * period**0.5
        period = rule.decide(after_seconds(period, computed=0.01, waited=waited))
        seen.append(period)
    assert set(seen[-5:]) == {seen[-1]}
    assert 5 < seen[-1] < 15


@pytest.mark.parametrize("name", ["adacomm", "delay-ratio"])
def test_rules_are_made_by_name(name: str) -> None:
    rule = make_period_rule(name)
    assert isinstance(rule, PeriodRule)
    rule.load_state_dict(rule.state_dict())
    with pytest.raises(ValueError, match="also has bits"):
        rule.load_state_dict({**rule.state_dict(), "bits": 4})


def test_mistakes_are_named() -> None:
    assert make_period_rule("adacomm:2,decay=0.7") == mqgrad.AdaComm(seconds=2, decay=0.7)
    assert make_period_rule("delay-ratio:4,largest=9") == mqgrad.DelayRatio(scale=4, largest=9)
    for spec, message in (
        ("ada", "unknown period rule 'ada'; known: adacomm, delay-ratio"),
        ("adacomm:0", "seconds must be a finite number above 0, not 0.0"),
        ("adacomm:decay=1", "decay 1.0 must be between 0 and 1"),
        ("delay-ratio:0", "scale must be a finite number above 0, not 0.0"),
        ("delay-ratio:largest=0", "largest must be a whole number .*not 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make_period_rule(spec)

    def rank_main(rank: int) -> None:
        with pytest.raises(ValueError, match=r"AdaComm.* decides where a controller does: give one"):
            mqgrad.CompressionState(period_rule=mqgrad.AdaComm())

    run_ranks(rank_main, 1)


def trained(rank: int, controller: Controller, rule: PeriodRule, iterations: int, period: int) -> list[Any]:
    """Of each iteration, whether it ended a round, the iterations counted so far, and the parameters."""
    model, optimizer, state = models.new_run(controller, period=period, period_rule=rule)
    seen: list[Any] = []
    for iteration in range(iterations):
        models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
        parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
        seen.append((state.replicas_are_equal, state.totals.iterations, parameters.numpy().tobytes()))
    state.close()
    return seen


def test_rounds_are_as_long_as_rank_0_decides() -> None:
    """Intervals of two rounds: 2 · 3 iterations, then 2 · 1, 2 · 4 and so on."""

    def rank_main(rank: int) -> tuple[list[Any], list[int]]:
        rule = Listed(1, 4, 2, seconds=0.2) if rank == 0 else Listed(7)
        return trained(rank, mqgrad.FixedBits(1, interval=2), rule, 20, period=3), rule.seen

    (seen, periods), (others, others_periods) = run_ranks(rank_main)
    ends = [3, 6, 7, 8, 12, 16, 18, 20]
    assert [k + 1 for k, (is_end, *_) in enumerate(seen) if is_end] == ends
    assert [count for is_end, count, _ in seen if is_end] == ends
    assert periods == others_periods == [3, 1, 4, 2]
    for (is_end, _, mine), (_, _, theirs) in zip(seen, others, strict=True):
        assert (mine == theirs) == is_end


def test_beside_a_fixed_width_a_rule_decides_every_ten_rounds() -> None:
    def rank_main(rank: int) -> list[int]:
        rule = Listed(1, 1, 1)
        trained(rank, mqgrad.FixedBits(4), rule, 32, period=1)
        return rule.seen

    assert run_ranks(rank_main) == [[1, 1, 1]] * 2


def test_a_rules_first_decision_comes_within_ten_rounds_whatever_the_controllers_interval() -> None:
    decisions = Decisions(mqgrad.DQSGD(interval=100), DelayRatio(), mqgrad.Quantized(), period=4)
    assert decisions.interval == 10


def test_a_first_decision_comes_early_where_the_controller_wants_it() -> None:
    """After two rounds of 4, as the seconds of the first are not known; then three of 2."""

    def rank_main(rank: int) -> list[Any]:
        return trained(rank, Scripted([4, 2], interval=3, opening=1), Listed(2, 5), 15, period=4)

    ends = [k + 1 for k, (is_end, *_) in enumerate(run_ranks(rank_main)[0]) if is_end]
    assert ends == [4, 8, 10, 12, 14]


def test_statistics_of_a_round_tell_its_period_and_hold_all_of_it() -> None:
    def rank_main(rank: int) -> list[IntervalStatistics]:
        controller = Scripted([4, 8], interval=2)
        trained(rank, controller, Listed(1, 20), 51, period=4)
        return controller.seen

    first, single, long = run_ranks(rank_main)[0][:3]
    assert [(s.period, len(s.losses), s.iteration) for s in (first, single, long)] == [
        (4, 2, 8),
        (1, 2, 10),
        (20, 2, 50),
    ]
    assert long.compute_seconds > 3 * single.compute_seconds
    assert long.step_seconds >= long.compute_seconds + long.waited_seconds > long.compute_seconds
    moved = [s.gradient_signal + s.gradient_noise for s in (single, long)]
    assert (
        moved[0] / 10 < moved[1] < moved[0] * 10
    )  # of an iteration, and not of a round: that would be 400 times


def test_a_run_may_begin_with_rounds_of_one() -> None:
    """Where they are rounds, and not averages of gradients: those that a script sees are its rank's own."""

    def rank_main(rank: int) -> tuple[list[bytes], list[Any]]:
        rule = Listed(3)
        model, optimizer, state = models.new_run(
            mqgrad.FixedBits(4, interval=2), period=1, period_rule=rule, slow_momentum=0.2
        )
        gradients = models.train(model, optimizer, state, rank, range(8))
        state.close()
        return gradients, [state.period, state.totals.iterations, state.replicas_are_equal]

    (gradients, ended), (others, others_ended) = run_ranks(rank_main)
    assert ended == others_ended == [3, 8, True]
    assert all(mine != theirs for mine, theirs in zip(gradients, others, strict=True))


@pytest.mark.parametrize("period", [0, -3, 2.5, math.nan, math.inf, 2**31])
def test_a_rule_that_decides_on_no_period_stops_every_rank(period: float) -> None:
    def rank_main(rank: int) -> int:
        rule = Listed(period) if rank == 0 else Listed(2)
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=2), period=2, period_rule=rule)
        models.train(model, optimizer, state, rank, range(4))
        for iteration in (4, 5, 6):  # and not silently alone from there on
            with pytest.raises(RuntimeError, match=r"decided on a period of .* must be a whole number"):
                models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
        return state.totals.iterations

    assert run_ranks(rank_main) == [4, 4]


def test_a_rule_that_fails_is_told_of_at_once() -> None:
    class Broken(Listed):
        def decide(self, statistics: IntervalStatistics) -> Any:
            raise ZeroDivisionError("no way")

    def rank_main(rank: int) -> str:
        with pytest.raises(RuntimeError, match="no way") as caught:
            trained(rank, mqgrad.FixedBits(4, interval=1), Broken(1), 12, period=3)
        return type(caught.value.__cause__.__cause__).__name__

    assert run_ranks(rank_main) == ["ZeroDivisionError"] * 2


def test_ranks_with_different_rules_are_told_so() -> None:
    def rank_main(rank: int) -> None:
        rule = mqgrad.AdaComm() if rank == 0 else mqgrad.DelayRatio()
        with pytest.raises(RuntimeError, match=r"RankDisagreement: ranks disagree about the configuration"):
            trained(rank, mqgrad.FixedBits(4), rule, 6, period=2)

    run_ranks(rank_main)


def test_slow_momentum_is_what_a_round_of_the_new_length_would_move() -> None:
    """u: 4, 4 + 4/2, 1 + (6/2)/4, 2 + (1.75/2) · 2."""

    def rank_main(rank: int) -> list[list[float]]:
        controller = mqgrad.FixedBits(32, interval=1)
        return fallen(controller, [1.0], 11, period=4, slow_momentum=0.5, period_rule=Listed(4, 1, 2))

    assert run_ranks(rank_main, 1)[0][1:] == [[4.0], [6.0], [1.75], [3.75]]


def test_the_velocity_of_what_is_frozen_follows_the_period_too() -> None:
    """Unfrozen after rounds of another length, it went on by what a round of the old one had moved."""

    def rank_main(rank: int) -> list[float]:
        state = mqgrad.CompressionState(
            mqgrad.FixedBits(32, interval=1), period=4, slow_momentum=0.5, period_rule=Listed(4, 2)
        )
        model = models.small_model()
        ddp = models.compressed_ddp(model, state, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def sizes() -> torch.Tensor:
            return torch.stack([u.norm() for u in state.state_dict()["rounds"]["velocities"].values()])

        state.mark()
        models.train(ddp, optimizer, state, rank, range(4))
        model[0].requires_grad_(False)
        before = sizes()
        models.train(ddp, optimizer, state, rank, range(4, 10))
        kept = [size for size in (sizes() / before).tolist() if size == 0.5]
        state.close()
        return kept

    assert run_ranks(rank_main) == [[0.5, 0.5]] * 2
