"""The cluster of real processes at work."""

import copy
import multiprocessing
import pickle
import time
import warnings
from typing import Any

import pytest
import torch

import mqgrad
from mqgrad.compressors import make_compressor
from mqgrad.trainers import Cluster, Distributed, LinkEmulation, ModelClock
from mqgrad.trainers.clusters.errors import ReplicaMismatchError
from mqgrad.trainers.clusters.method_checks import warn_of_momentum
from mqgrad.trainers.clusters.session import digest_of
from mqgrad.trainers.link import parse_emulation
from mqgrad.trainers.methods import make_method
from mqgrad.trainers.workloads.workload import make_workload
from mqgrad.widths import WIDTHS


def test_a_copy_is_the_cluster_itself(cluster: Distributed) -> None:
    assert copy.deepcopy({"cluster": cluster}) == {"cluster": cluster}


def test_is_a_cluster(cluster: Distributed) -> None:
    assert isinstance(cluster, Cluster)
    assert (cluster.world_size, cluster.workload.name) == (2, "digits-mlp")


@pytest.mark.parametrize("bits", WIDTHS)
def test_replicas_stay_identical_at_every_width(cluster: Distributed, bits: int) -> None:
    cluster.reset(seed=1)
    before = cluster.verify_replicas()
    statistics = cluster.run(6, bits=bits)
    assert cluster.verify_replicas() != before
    assert (statistics.bits, statistics.iteration, len(statistics.losses)) == (bits, 6, 6)
    assert statistics.gradient_noise > 0
    assert statistics.peak_energy > 0


def test_the_same_seed_gives_the_same_run(cluster: Distributed) -> None:
    def run(seed: int) -> tuple:
        cluster.reset(seed)
        losses = [cluster.run(5, bits=bits).losses for bits in (2, 8, 32)]
        return losses, cluster.verify_replicas(), cluster.evaluate()

    first = run(3)
    assert run(3) == first
    assert run(4) != first


def test_training_learns_at_four_bits(cluster: Distributed) -> None:
    cluster.reset(seed=0)
    first = cluster.run(10, bits=4)
    for _ in range(9):
        last = cluster.run(20, bits=4)
    assert last.iteration == 190
    assert last.loss < first.loss - 1
    assert cluster.evaluate()["accuracy"] > 0.6


def test_fewer_bits_are_fewer_bytes(cluster: Distributed) -> None:
    cluster.reset(seed=0)
    wire_bytes = [cluster.run(3, bits=bits).wire_bytes for bits in (32, 16, 8, 4, 2)]
    assert wire_bytes == sorted(wire_bytes, reverse=True)
    assert wire_bytes[0] / wire_bytes[-1] > 8


def test_replicas_of_none_are_not_verified(cluster: Distributed) -> None:
    cluster.reset(seed=0, compressor="none")
    cluster.run(2, bits=32)
    with pytest.raises(ValueError, match="replicas of this run never become equal"):
        cluster.verify_replicas()
    cluster.reset(seed=0, compressor="fp16")
    cluster.run(2, bits=16)
    cluster.verify_replicas()


def test_an_emulated_link_takes_its_time(cluster: Distributed) -> None:
    cluster.reset(seed=0, link=LinkEmulation(mbit_per_s=10))
    slow = cluster.run(3, bits=32)
    assert slow.step_seconds > slow.wire_bytes * 8 / 10e6
    # The comm thread is blocked for all of it but what passes between sending and waiting.
    assert slow.wire_seconds > 0.9 * slow.wire_bytes * 8 / 10e6
    assert slow.compute_seconds < slow.step_seconds - slow.wire_bytes * 8 / 10e6 / 2  # not what it waits


def test_a_pause_between_intervals_is_not_training_time(cluster: Distributed) -> None:
    cluster.reset(seed=0)
    cluster.run(2, bits=32)
    time.sleep(0.2)
    started = time.perf_counter()
    assert cluster.run(2, bits=32).seconds <= time.perf_counter() - started


def test_a_controller_decides(cluster: Distributed) -> None:
    cluster.reset(seed=0, controller="fixed:4")
    statistics = cluster.run(12)
    assert statistics.gradient_signal + statistics.gradient_noise > 0  # as the controller saw them
    assert 0 < statistics.decide_seconds < statistics.step_seconds
    assert statistics.bits == 4
    assert len(statistics.losses) == 12
    assert statistics.seconds > 0
    cluster.reset(seed=0)
    assert cluster.run(12, bits=4).losses == statistics.losses


def test_rounds_of_local_iterations(cluster: Distributed) -> None:
    """At 32 bits as local SGD, whose parameters travel themselves; a round counts where the caller decides."""
    cluster.reset(seed=0, method="local-sgd:period=4")
    apart = cluster.run(12)
    cluster.reset(seed=0, controller="fixed:32", method="ddp:period=4")
    together = cluster.run(12)
    assert together.losses == pytest.approx(apart.losses, rel=1e-4)
    assert together.iteration == 12
    assert together.wire_bytes == pytest.approx(apart.wire_bytes, rel=0.02)
    cluster.verify_replicas()
    cluster.reset(seed=0, method="ddp:period=4")
    rounds = cluster.run(12, bits=32)
    means = [sum(apart.losses[k : k + 4]) / 4 for k in (0, 4, 8)]
    assert rounds.losses == pytest.approx(means, rel=1e-4)
    assert (rounds.iteration, rounds.bits, rounds.mean_bits) == (12, 32, 32)
    assert rounds.wire_bytes == pytest.approx(4 * apart.wire_bytes, rel=0.02)
    with pytest.raises(ValueError, match="3 iterations are no whole number of rounds of 4"):
        cluster.run(3, bits=4)
    cluster.reset(seed=0, controller="fixed:4", method="ddp:period=4")
    part = cluster.run(3)
    assert (part.iteration, part.wire_bytes) == (0, 0)
    assert part.seconds > 0
    with pytest.raises(ReplicaMismatchError):
        cluster.verify_replicas()


def test_mean_bits_counts_every_iteration(cluster: Distributed) -> None:
    """A width that changes inside what one call runs is counted from the iteration at which it changed."""
    cluster.reset(seed=0, controller="linear-ramp:start=2,end=8,decisions=3")
    whole = cluster.run(30)
    cluster.reset(seed=0, controller="linear-ramp:start=2,end=8,decisions=3")
    singles = [cluster.run(1).bits for _ in range(30)]
    assert len(set(singles)) > 1
    assert whole.bit_iterations == sum(singles)
    assert whole.mean_bits == pytest.approx(sum(singles) / 30)
    assert whole.mean_bits != whole.bits


@pytest.mark.parametrize(
    ("reset", "run", "message"),
    [
        ({}, {"iterations": 1}, "was given no controller"),
        ({"controller": "fixed:4"}, {"iterations": 1, "bits": 4}, "bits=4, but the controller"),
        ({}, {"iterations": 1, "bits": 9}, "bit width 9"),
        ({}, {"iterations": 0, "bits": 4}, "iterations must be .* not 0"),
        ({"controller": "fixd:4"}, {"iterations": 1}, "unknown controller 'fixd:4'"),
        (
            {"controller": "goodput", "compressor": "minmax"},
            {"iterations": 1},
            "compressors that have these widths",
        ),
    ],
)
def test_mistakes_are_named_and_cost_no_worker(
    cluster: Distributed, reset: dict, run: dict, message: str
) -> None:
    def mistaken() -> None:
        cluster.reset(seed=0, **reset)
        cluster.run(**run)

    with pytest.raises(ValueError, match=message):
        mistaken()
    cluster.reset(seed=0)
    assert cluster.run(1, bits=4).iteration == 1


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ({"compressor": "none", "method": "ddp:period_rule=adacomm"}, "a period rule decides"),
        ({"method": "no-sync", "controller": "fixed:4"}, "no width"),
        ({"method": "backup-workers:backups=2"}, "leave none"),
        ({"method": "ddp:period=3,period_rule=adacomm"}, "a period rule decides"),
        (
            {"method": "plain-ddp:hook=powersgd,rank=1", "link": LinkEmulation(mbit_per_s=1)},
            "cannot be paced on an emulated link .* take a link that the kernel shapes",
        ),
    ],
)
def test_the_run_goes_on_after_a_refused_reset(cluster: Distributed, refused: dict, message: str) -> None:
    cluster.reset(seed=0, method="ddp:period=2")
    with pytest.raises(ValueError, match=message):
        cluster.reset(seed=0, **refused)
    assert cluster.run(4, bits=8).iteration == 4
    with pytest.raises(ValueError, match="3 iterations are no whole number of rounds of 2"):
        cluster.run(3, bits=8)
    cluster.verify_replicas()


def test_a_digest_covers_parameters_of_every_shape() -> None:
    model = torch.nn.Module()
    model.scale = torch.nn.Parameter(torch.tensor(1.0))
    before = digest_of(model)
    model.scale.data.add_(1.0)
    assert digest_of(model) != before


def test_nothing_is_asked_of_ranks_before_a_reset() -> None:
    with Distributed("digits-mlp", {"width": 16}, num_workers=1) as cluster:
        with pytest.raises(RuntimeError, match=r"call reset\(seed\) before run\(\)"):
            cluster.run(1, bits=4)
        with pytest.raises(RuntimeError, match=r"call reset\(seed\) before evaluate\(\)"):
            cluster.evaluate()
        with pytest.raises(RuntimeError, match=r"call reset\(seed\) before verify_replicas\(\)"):
            cluster.verify_replicas()
        cluster.reset(seed=0)
        assert cluster.run(1, bits=4).iteration == 1


@pytest.mark.parametrize(
    "arguments", [{"num_workers": 0}, {"clock": "modelled"}, {"timeout_seconds": -1}, {"workload": "digits"}]
)
def test_bad_arguments_are_named_before_a_worker_starts(arguments: dict) -> None:
    with pytest.raises(ValueError, match=str(next(iter(arguments.values())))):
        Distributed(**arguments)


def test_under_a_modelled_clock_everything_repeats() -> None:
    clock = ModelClock(compute_seconds=0.01, mbit_per_s=0.1, latency_ms=1)
    with Distributed("digits-mlp", {"width": 16}, clock=clock) as cluster:
        runs = []
        for _ in range(2):
            cluster.reset(seed=5)
            runs.append([cluster.run(4, bits=bits) for bits in (2, 8)])
        assert runs[0] == runs[1]
        assert runs[0][0].step_seconds == pytest.approx(0.011 + runs[0][0].wire_bytes * 8 / 1e5)
        cluster.reset(seed=5, link=LinkEmulation(mbit_per_s=1))
        assert cluster.run(4, bits=2).step_seconds == pytest.approx(0.011 + runs[0][0].wire_bytes * 8 / 1e6)
        with pytest.raises(ValueError, match="needs measured seconds, a cluster without a clock"):
            cluster.reset(seed=5, method="ddp:period=2", link=LinkEmulation(mbit_per_s=100))
        for apart in ("local-sgd", "no-sync", "overlap-local-sgd", "backup-workers:mean_delay_ms=1"):
            with pytest.raises(ValueError, match="each wait for what they send"):
                cluster.reset(seed=5, method=apart)
        with pytest.raises(ValueError, match=r"seed must be an integer.*, not -1"):
            cluster.reset(seed=-1)
        with pytest.raises(ValueError, match="use it on a cluster without a clock"):
            cluster.reset(seed=5, controller="fixed:4", link=LinkEmulation(mbit_per_s=100))
        with pytest.raises(ValueError, match="a modelled clock knows one rate"):
            cluster.reset(seed=5, link=parse_emulation("100/1000@10"))
        sent = (
            runs[0][0].wire_bytes - 2 * 64 / 4
        )  # the first interval has three checks of 64 bytes, this one has one
        assert cluster.run(4, bits=2).step_seconds == pytest.approx(0.011 + sent * 8 / 1e6)
        assert cluster.run(1, bits=2).iteration == 9


def test_a_controller_that_does_not_pickle_costs_no_worker(cluster: Distributed) -> None:
    class OfThisFunction(mqgrad.FixedBits):
        pass

    cluster.reset(seed=0)
    with pytest.raises((AttributeError, pickle.PicklingError), match="OfThisFunction"):
        cluster.reset(seed=0, controller=OfThisFunction(4))
    assert cluster.run(2, bits=4).iteration == 2


def _run_in_daemon(results: "multiprocessing.SimpleQueue[int]") -> None:
    with Distributed("digits-mlp", {"width": 16}, num_workers=1) as cluster:
        cluster.reset(seed=0)
        results.put(cluster.run(2, bits=4).world_size)


def test_a_daemonic_process_can_have_a_cluster_of_one() -> None:
    """As the environments of Stable-Baselines3's SubprocVecEnv are."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=_run_in_daemon, args=(results,), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert results.get() == 1


@pytest.mark.parametrize(
    ("compressor", "method", "settings", "warned"),
    [
        ("dgc", "ddp", {}, True),
        ("onebit-adam", "ddp", {"optimizer": "adam"}, True),
        ("dgc", "ddp", {"momentum": 0.0}, False),
        ("dgc:momentum=0", "ddp", {}, False),
        ("top-k", "ddp", {}, False),
        ("dgc", "plain-ddp", {}, False),
    ],
)
def test_a_momentum_of_both_optimizer_and_compressor_is_warned_of(
    compressor: str, method: str, settings: dict[str, Any], warned: bool
) -> None:
    """In this process: a worker's warning is in its log, where nobody looks unless it fails."""
    workload = make_workload("digits-mlp", width=8, **settings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_momentum(workload, make_compressor(compressor), make_method(method))
    assert len(told) == warned
