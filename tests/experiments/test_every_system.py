"""Every controller, compressor and method by name, as ``mqgrad run`` trains with it, on real ranks."""

import dataclasses
import math
from collections.abc import Iterator

import pytest

from mqgrad.compressors import compressor_names, make_compressor
from mqgrad.controllers import controller_names
from mqgrad.experiments.oracle import oracle_trials, run_oracle
from mqgrad.experiments.runs import RunRecord, RunSpec, default_controller, run_training
from mqgrad.trainers.clusters.distributed import Distributed
from mqgrad.trainers.methods import DEFAULT_METHOD, method_names

ITERATIONS = 6  # three decisions
ARGUMENTS = {
    "gravac": "least_factor=4,least_gain=0.3,window=2",
    "minmax": "min_numel=1000",
    "onebit-adam": "warmup_iterations=3",
    "post-local-sgd": "warmup=1,period=2",
    "sketched-sgd": "0.05,columns=2",
    "backup-workers": "mean_delay_ms=1",
    "local-sgd": "period=2",
    "overlap-local-sgd": "period=2",
    "slowmo": "period=2",
}
"""Arguments of compressors and methods, where the defaults would do nothing in so few iterations."""
CONTROLLER_ARGUMENTS = {
    "fixed": "4",
    "accordion": "window=1",
    "budget-ramp": "budget_seconds=3",
    "gravac": "window=1",
}
NO_EXCHANGE = ("none", "no-sync")
APART = (*NO_EXCHANGE, "overlap-local-sgd")
"""Whose replicas are not meant to be equal."""


@pytest.fixture
def two(cluster: Distributed) -> Distributed:
    return cluster


@pytest.fixture(scope="module")
def four() -> Iterator[Distributed]:
    """On the one workload whose smoothness is known."""
    with Distributed("logreg", num_workers=4) as cluster:
        yield cluster


def checked(cluster: Distributed, controller: str | None, compressor: str, method: str) -> RunRecord:
    """Run it; fail unless it trains, counts what it sends and leaves equal replicas."""
    asked = RunSpec(
        seed=0, controller=controller, compressor=compressor, method=method, iterations=ITERATIONS
    )
    record = run_training(cluster, asked)
    assert record.outcome == "finished"
    assert all(math.isfinite(p.train_loss) and math.isfinite(p.heldout["loss"]) for p in record.points)
    assert 0 < record.mean_bits <= 32
    names = {compressor.partition(":")[0], method.partition(":")[0]}
    if not names & set(NO_EXCHANGE):
        sent = [point.wire_bytes for point in record.points]
        assert sent[-1] > 0
        assert sent == sorted(sent)
    if not names & set(APART):
        cluster.verify_replicas()
    return record


def spec(name: str, arguments: dict[str, str]) -> str:
    return f"{name}:{arguments[name]}" if name in arguments else name


def with_interval(name: str) -> str:
    """The controller, deciding every other iteration."""
    return f"{spec(name, CONTROLLER_ARGUMENTS)}{',' if name in CONTROLLER_ARGUMENTS else ':'}interval=2"


@pytest.mark.parametrize("controller", controller_names())
def test_every_controller(two: Distributed, controller: str) -> None:
    record = checked(two, with_interval(controller), "quantized", DEFAULT_METHOD)
    assert record.final.gradient_norm_sq > 0  # it was given statistics


def test_the_oracle_and_the_default_policy(two: Distributed) -> None:
    trials = oracle_trials("oracle:widths=2+8", "quantized")
    best = run_oracle(trials, lambda width: checked(two, width, "quantized", DEFAULT_METHOD), None)
    assert [trial.mean_bits for trial in best.trials] == [2, 8]
    assert best.final.heldout["loss"] == min(trial.final.heldout["loss"] for trial in best.trials)
    checked(two, "default", "quantized", DEFAULT_METHOD)


@pytest.mark.parametrize("compressor", compressor_names())
@pytest.mark.parametrize("method", [DEFAULT_METHOD, "ddp:period=2"])
def test_every_compressor(two: Distributed, four: Distributed, compressor: str, method: str) -> None:
    cluster = four if compressor == "smoothness" else two
    compressor = spec(compressor, ARGUMENTS)
    if "onebit-adam" in compressor and method != DEFAULT_METHOD:
        pytest.skip("refuses rounds")
    checked(cluster, f"{default_controller(compressor)},interval=2", compressor, method)


@pytest.mark.parametrize("method", [name for name in method_names() if name != DEFAULT_METHOD])
def test_every_method(two: Distributed, method: str) -> None:
    checked(two, None, "quantized", spec(method, ARGUMENTS))


@pytest.mark.parametrize("rule", ["adacomm", "delay-ratio"])
def test_every_period_rule(two: Distributed, rule: str) -> None:
    method = f"ddp:period=2,period_rule={rule}"
    record = checked(two, with_interval("fixed"), "quantized", method)
    assert "period" in record.final.figures


@pytest.mark.parametrize(
    ("controller", "compressor"),
    [
        ("l-greco:interval=2", "quantized"),
        ("dq-sgd:interval=2", "qsgd:topology=star"),
        ("fixed:32", "gravac:least_factor=4,least_gain=0.3,window=2"),
        ("fixed:32", "powersgd:rank=2"),
        ("fixed:2", "terngrad"),
    ],
)
def test_some_systems_on_four_ranks(four: Distributed, controller: str, compressor: str) -> None:
    checked(four, controller, compressor, DEFAULT_METHOD)


def test_what_a_compressor_measures_of_itself_is_recorded(two: Distributed) -> None:
    ecq = checked(two, "fixed:2,interval=2", "ecq-sgd:topology=sharded", DEFAULT_METHOD).final.figures
    assert 0 < ecq["feedback_growth_push"] < 1
    assert 0 < ecq["feedback_growth_pull"] < 1
    assert 0 < ecq["entropy_coded_share"] < 1
    gravac = spec("gravac", ARGUMENTS)
    record = checked(two, "fixed:32,interval=2", gravac, DEFAULT_METHOD)
    assert record.points[-1].figures["compression_factor"] in (1, 4, 8, 16, 32)
    assert 0.3 <= record.points[-1].figures["gain"] <= 1
    assert RunRecord.from_dict(dataclasses.asdict(record)) == record
    assert make_compressor("qsgd").figures() == {}
