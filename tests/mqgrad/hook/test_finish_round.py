"""Rounds of local iterations that a script ends early."""

import models
import pytest
import torch
from falling import fallen
from ranks import run_ranks
from scripted import Scripted

import mqgrad


def test_a_round_that_is_finished_early_is_a_shorter_round() -> None:
    """The parameters, bytes and totals are those of a run whose rule says so; and then it goes on as before."""

    class Rule:
        def decide(self, statistics: mqgrad.IntervalStatistics) -> int:
            return {5: 2, 7: 5}.get(statistics.iteration, 5)

        def state_dict(self) -> dict[str, object]:
            return {}

        def load_state_dict(self, state: dict[str, object]) -> None:
            pass

    def rank_main(rank: int, rule: Rule | None) -> tuple[bytes, bool, int, float, float, list[float]]:
        controller = Scripted([4], interval=1)
        model, optimizer, state = models.new_run(controller, period=5, period_rule=rule)
        state.mark()
        models.train(model, optimizer, state, rank, range(7))
        if rule is None:
            assert not state.replicas_are_equal
            state.finish_round()
        assert state.replicas_are_equal
        state.finish_round()
        models.train(model, optimizer, state, rank, range(7, 12))
        totals = state.totals
        ended = (models.parameters_of(model).numpy().tobytes(), state.replicas_are_equal)
        state.close()
        losses = [loss for seen in controller.seen for loss in seen.losses]
        return *ended, totals.iterations, totals.bit_iterations, totals.step_seconds > 0, losses

    finished, planned = (run_ranks(lambda rank, r=rule: rank_main(rank, r)) for rule in (None, Rule()))
    assert finished == planned
    assert finished[0][1:4] == (True, 12, 48)
    assert finished[0][0] == finished[1][0]


def test_a_part_of_a_round_counts_as_that_part_of_its_momentum() -> None:
    """u = 4; then 2 + ½·½·4, u = ¾·4 + 2; then 4 + ½·5."""

    def rank_main(rank: int) -> list[list[float]]:
        return fallen(mqgrad.FixedBits(32), [1.0], 10, finish_at=5, period=4, slow_momentum=0.5)

    assert run_ranks(rank_main, 1)[0][1:] == [[4.0], [3.0], [6.5]]


def test_without_rounds_there_is_none_to_finish() -> None:
    def rank_main(rank: int) -> int:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4))
        models.train(model, optimizer, state, rank, range(2))
        state.finish_round()
        state.close()
        return state.totals.iterations

    assert run_ranks(rank_main) == [2, 2]


@pytest.mark.parametrize("bits", [1, 32])
@pytest.mark.parametrize("settings", [{}, {"slow_momentum": 0.5}, {"variance_reduced": True}])
def test_a_round_may_be_finished_where_a_script_evaluates(bits: float, settings: dict[str, float]) -> None:
    """What it left behind were inference tensors, on which the next round failed."""

    def rank_main(rank: int) -> bytes:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(bits), period=4, **settings)
        models.train(model, optimizer, state, rank, range(1))
        with torch.inference_mode():
            state.finish_round()
        models.train(model, optimizer, state, rank, range(1, 9))
        state.close()
        return models.parameters_of(model).numpy().tobytes()

    assert len(set(run_ranks(rank_main))) == 1


def test_after_an_average_that_failed_it_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the link is down")

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), period=4)
        models.train(model, optimizer, state, rank, range(2))
        monkeypatch.setattr(type(state.compressor), "start_average_", fail)
        for told in ("the link is down", "earlier failure: .*the link is down"):
            with pytest.raises((RuntimeError, ValueError), match=told):
                state.finish_round()
        state.close()

    run_ranks(rank_main)
