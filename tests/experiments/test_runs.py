"""Records of runs."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from intervals import statistics

from mqgrad.experiments.oracle import best_in_hindsight, oracle_trials, run_oracle
from mqgrad.experiments.recorded_run import run_once
from mqgrad.experiments.runs import RunPoint, RunRecord, RunSpec, run_training
from mqgrad.statistics.interval import IntervalStatistics


class TinyCluster:
    """Loss halves every 5 iterations, a second each; diverges after ``diverge_at`` iterations."""

    world_size = 2
    workload: Any = None

    def __init__(self, diverge_at: float = math.inf, bits: float = 4, period: int = 1) -> None:
        self.iteration = 0
        self.period = period
        self.bits = bits
        self.diverge_at = diverge_at

    def reset(self, seed: int, **arguments: Any) -> None:
        self.iteration = 0

    def run(
        self, iterations: int, bits: int | None = None, *, to_exchange: bool = False
    ) -> IntervalStatistics:
        if to_exchange:
            iterations += -(self.iteration + iterations) % self.period
        self.iteration += iterations
        loss = 0.5 ** (self.iteration / 5) if self.iteration < self.diverge_at else math.nan
        return statistics(
            iteration=self.iteration,
            bits=self.bits,
            losses=(loss,) * iterations,
            step_seconds=1.0,
            compute_seconds=0.5,
            encode_seconds=0.0,
            wire_seconds=0.5,
            decode_seconds=0.0,
            wire_bytes=100.0,
            gradient_noise=1.0,
        )

    def evaluate(self) -> dict[str, float]:
        return {"loss": 0.5 ** (self.iteration / 5), "accuracy": 0.5}

    def close(self) -> None:
        pass


def trained(cluster: TinyCluster, **ends: Any) -> RunRecord:
    return run_training(cluster, RunSpec(seed=0, controller="fixed:4", **ends))


def test_fractions_of_a_bit_are_counted() -> None:
    assert trained(TinyCluster(bits=1 / 64), iterations=12).mean_bits == 1 / 64


def test_a_run_that_is_cut_off_leaves_its_record(tmp_path: Path) -> None:
    class Interrupted(TinyCluster):
        def run(self, iterations: int, bits: int | None = None, **arguments: bool) -> IntervalStatistics:
            if self.iteration >= 10:
                raise KeyboardInterrupt
            return super().run(iterations, bits, **arguments)

    file = tmp_path / "record.json"
    spec = RunSpec(seed=0, controller="fixed:4", iterations=99)
    with pytest.raises(KeyboardInterrupt):
        run_once(Interrupted(), spec, tensorboard=None, record=file)
    record = RunRecord.from_dict(json.loads(file.read_text()))
    assert [point.iteration for point in record.points] == [2, 4, 6, 8, 10]
    assert record.outcome == "running"


def test_a_run_ends_at_its_iterations_and_counts_everything() -> None:
    record = trained(TinyCluster(), iterations=12)
    assert [p.iteration for p in record.points] == [2, 4, 6, 8, 10, 12]
    assert record.final.elapsed_seconds == pytest.approx(12)
    assert record.final.wire_bytes == pytest.approx(1200)
    assert record.final.parts == {"compute": 6.0, "encode": 0.0, "wire": 6.0, "decode": 0.0, "decide": 0.0}
    assert record.final.gradient_norm_sq == 2.0
    assert record.mean_bits == 4
    assert record.outcome == "finished"
    assert record.curve.seconds_to(0.25) == pytest.approx(10)
    assert record.curve.seconds_to(0.5**1.5) == pytest.approx(7.5)
    assert record.curve.seconds_to(0.01) is None


def test_a_run_ends_at_its_budget_or_when_it_diverges() -> None:
    record = trained(TinyCluster(), budget_seconds=7)
    assert [point.iteration for point in record.points] == [2, 4, 6, 7]
    record = trained(TinyCluster(diverge_at=8), iterations=100)
    assert (record.outcome, record.final.iteration) == ("diverged", 8)


def test_runs_are_looked_at_after_the_same_iterations_whatever_these_take() -> None:
    def looked_at(cluster: TinyCluster) -> list[int]:
        record = trained(cluster, budget_seconds=200)
        return [point.iteration for point in record.points if point.elapsed_seconds < 150]

    slow, fast = looked_at(TinyCluster()), looked_at(SwitchingCluster())
    assert fast[: len(slow)] == slow
    assert slow[:32] == [*range(2, 62, 2), 63, 66]
    assert 1.04 < fast[-1] / fast[-2] <= 1.05


class SwitchingCluster(TinyCluster):
    """Iterations that begin in the first half of every four seconds of training take 0.5 s, others 0.0625 s."""

    elapsed = 0.0

    def run(
        self, iterations: int, bits: int | None = None, *, to_exchange: bool = False
    ) -> IntervalStatistics:
        before = self.elapsed
        for _ in range(iterations):
            self.elapsed += 0.5 if self.elapsed % 4 < 2 else 0.0625
        statistics = super().run(iterations, bits)
        return dataclasses.replace(statistics, step_seconds=(self.elapsed - before) / iterations)


def test_no_point_lies_beyond_the_budget_by_more_than_one_slow_iteration() -> None:
    for budget_seconds in (7.9, 20, 26.1, 32):
        record = trained(SwitchingCluster(), budget_seconds=budget_seconds)
        assert budget_seconds <= record.final.elapsed_seconds < budget_seconds + 0.5


@pytest.mark.parametrize(("period", "looked_at"), [(1, [2, 4, 6, 7]), (3, [3, 6, 9])])
def test_a_run_is_looked_at_where_replicas_have_just_met(period: int, looked_at: list[int]) -> None:
    record = trained(TinyCluster(period=period), budget_seconds=7)
    assert [point.iteration for point in record.points] == looked_at
    to_end = trained(TinyCluster(period=period), iterations=7)
    assert to_end.final.iteration == looked_at[-1]


@pytest.mark.parametrize("figures", [{"accuracy": 0.5}, 0.5, None])
def test_an_evaluation_without_a_loss_is_named(figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TinyCluster, "evaluate", lambda self: figures)
    monkeypatch.setattr(TinyCluster, "workload", SimpleNamespace(name="mine"))
    with pytest.raises(ValueError, match=r"evaluate\(\) of workload 'mine' must return the held-out 'loss'"):
        trained(TinyCluster(), iterations=4)


@pytest.mark.parametrize("as_given", [torch.tensor, np.float32])
def test_figures_of_an_evaluation_may_be_tensors_and_what_is_no_number_is_named(
    as_given: Callable[[float], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was lost where its record was to be written."""
    monkeypatch.setattr(TinyCluster, "evaluate", lambda self: {"loss": as_given(0.5)})
    monkeypatch.setattr(TinyCluster, "workload", SimpleNamespace(name="mine"))
    record = trained(TinyCluster(), iterations=4)
    record.write(tmp_path / "record.json")
    assert record.final.heldout == {"loss": 0.5}
    monkeypatch.setattr(TinyCluster, "evaluate", lambda self: {"loss": as_given([0.5, 1.0])})
    with pytest.raises(ValueError, match=r"workload 'mine' returned 'loss' as .* which is no number"):
        trained(TinyCluster(), iterations=4)


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing ends the run"):
        trained(TinyCluster())


def point(iteration: int, loss: float) -> RunPoint:
    return RunPoint(
        iteration=iteration,
        elapsed_seconds=float(iteration),
        bits=4,
        train_loss=loss,
        heldout={"loss": loss, "accuracy": 0.9},
        wire_bytes=2.0**20 * iteration,
    )


def test_the_oracle_is_the_best_of_the_runs_that_finished() -> None:
    runs = {
        "fixed:2": RunRecord(controller="fixed:2", seed=1, points=[point(5, 0.3)], outcome="finished"),
        "fixed:4": RunRecord(controller="fixed:4", seed=1, points=[point(3, 0.2)], outcome="finished"),
        "fixed:8": RunRecord(controller="fixed:8", seed=1, points=[point(1, 0.1)], outcome="diverged"),
    }
    result = run_oracle(oracle_trials("oracle:widths=2+4+8", "quantized"), runs.__getitem__, None)
    assert result.controller == "oracle: fixed:4 in hindsight"
    assert result.final == runs["fixed:4"].final
    assert result.trials == list(runs.values())
    assert result.trial_seconds == 9
    assert RunRecord.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_the_oracle_goes_by_more_than_the_last_evaluation() -> None:
    """Single ones differ by a factor of two."""
    lucky, steady = [point(90, 0.9), point(96, 0.9), point(100, 0.4)], [point(91, 0.5), point(100, 0.5)]
    runs = [
        RunRecord(controller=c, seed=1, points=p, outcome="finished")
        for c, p in (("a", lucky), ("b", steady))
    ]
    assert best_in_hindsight(runs).final == steady[-1]
    lost = RunRecord(
        controller="c", seed=1, points=[point(98, 0.1), point(100, math.nan)], outcome="finished"
    )
    assert best_in_hindsight([lost, *runs]).final == steady[-1]


def test_a_single_low_evaluation_does_not_reach_a_target() -> None:
    losses = [1.0] * 10 + [0.5] + [1.0] * 10
    points = [point(100 + 2 * i, loss) for i, loss in enumerate(losses)]
    assert (
        RunRecord(controller="fixed:4", seed=1, points=points, outcome="finished").curve.seconds_to(0.6)
        is None
    )


def test_the_oracle_tries_the_widths_of_the_compressor() -> None:
    assert oracle_trials("goodput", "quantized") == oracle_trials(None, "quantized") == ()
    assert oracle_trials("oracle", "quantized")[-3:] == ("fixed:8", "fixed:16", "fixed:32")
    assert oracle_trials("oracle", "minmax") == tuple(f"fixed:{bits}" for bits in range(1, 9))
    assert oracle_trials("oracle:widths=1/2+4", "quantized") == ("fixed:1/2", "fixed:4")
    with pytest.raises(ValueError, match=r"'oracle:widths=4\+16': bit width 16 is not supported"):
        oracle_trials("oracle:widths=4+16", "minmax")


def test_records_survive_json() -> None:
    reached = RunRecord(
        controller="fixed:2",
        seed=1,
        points=[point(1, 2.0), point(4, 0.5)],
        bit_iterations=8,
        outcome="finished",
    )
    assert RunRecord.from_dict(json.loads(json.dumps(reached.to_dict()))) == reached
    assert reached.curve.seconds_to(1.0) == 2.5  # halfway from 2.0 to 0.5, in the logarithm
    reached.outcome = "diverged"  # later, and so it has not got there
    assert reached.curve.seconds_to(1.0) is None


def test_a_record_that_is_written_is_json_also_where_a_run_has_diverged(tmp_path: Path) -> None:
    record = RunRecord(controller="fixed:1", seed=1, points=[point(1, math.nan), point(2, math.inf)])
    record.write(tmp_path / "record.json")
    saved = json.loads((tmp_path / "record.json").read_text(), parse_constant=pytest.fail)
    assert [each["heldout"]["loss"] for each in saved["points"]] == [None, None]
    again = RunRecord.from_dict(saved)
    assert all(math.isnan(each.train_loss) for each in again.points)
    assert again.curve.seconds_to(1.0) is None
