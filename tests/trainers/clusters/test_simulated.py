"""The cluster of virtual ranks: the same numbers as real processes, on a modelled clock."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scripted import Scripted

import mqgrad
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.trainers import Cluster, Distributed, LinkEmulation, ModelClock, Simulated, calibrate
from mqgrad.trainers.clusters.in_process import InProcessTransport, MeetingPoint
from mqgrad.widths import Width

CLOCK = ModelClock(compute_seconds=0.01, mbit_per_s=100)
WORKLOAD: dict[str, Any] = {"workload": "digits-mlp", "workload_settings": {"width": 48}}

TWO_BUCKETS = {"width": 400}  # DDP's first bucket holds 1 MiB


def simulated(**arguments: Any) -> Simulated:
    return Simulated(**{**WORKLOAD, "clock": CLOCK, **arguments})


@pytest.fixture(scope="module", params=[2, 4])
def real(request: pytest.FixtureRequest) -> Iterator[Distributed]:
    with Distributed("digits-mlp", TWO_BUCKETS, num_workers=request.param, clock=CLOCK) as cluster:
        yield cluster


@pytest.mark.parametrize("compressor", ["quantized", "qsgd", "quantized:topology=star"])
def test_losses_bytes_and_figures_are_those_of_real_processes(real: Distributed, compressor: str) -> None:
    widths = (4, 1, 2, 8, 3, 16, 6) + ((32, 2) if real.world_size == 2 else ())

    def train(cluster: Cluster) -> tuple[list[IntervalStatistics], dict[str, float]]:
        cluster.reset(seed=5, compressor=compressor)
        return [cluster.run(3, bits=bits) for bits in widths], cluster.evaluate()

    with simulated(workload_settings=TWO_BUCKETS, num_workers=real.world_size) as virtual:
        (expected, expected_figures), (intervals, figures) = train(real), train(virtual)
    assert intervals == expected
    assert figures == expected_figures


def test_an_interval_costs_one_check_beside_its_gradients() -> None:
    """As in a deployed run: a message in each iteration would make agents learn of another system's seconds."""
    with simulated(num_workers=2) as cluster:
        cluster.reset(seed=1)
        cluster.run(4, bits=32)  # the first three iterations are checked in any case
        statistics = cluster.run(8, bits=32)
        gradient = sum(parameter.nbytes for parameter in cluster.workload.build_model().parameters())
    assert statistics.wire_bytes == gradient + 8 * 8 / 8


def test_one_bit_trains_with_momentum_sgd() -> None:
    with simulated(num_workers=4, workload="digits-cnn", workload_settings={"width": 16}) as cluster:
        cluster.reset(seed=1)
        losses = cluster.run(100, bits=1).losses
    assert sum(losses[-10:]) / 10 < 0.8  # 2.3 and more with the signs of the elements, not rotated


def test_random_numbers_and_buffers_are_those_of_ddp() -> None:
    """Dropout draws from each rank's generator; batch normalisation has buffers, which DDP takes from rank 0."""
    name = "regularised:Regularised"
    with Distributed(name, num_workers=2, clock=CLOCK) as real, Simulated(name, clock=CLOCK) as virtual:
        results = []
        for cluster in (real, virtual):
            cluster.reset(seed=2)
            results.append((cluster.run(6, bits=4).losses, cluster.evaluate()))
    assert results[0] == results[1]


def test_adam_is_known_as_such_where_param_groups_have_rates_of_their_own() -> None:
    """As in a deployment that gives its optimizer: policies observe here what they will observe there."""
    name = "two_rates:TwoRates"
    with Distributed(name, num_workers=2, clock=CLOCK) as real, Simulated(name, clock=CLOCK) as virtual:
        for cluster in (real, virtual):
            cluster.reset(seed=2)
            assert cluster.run(10, bits=4).update_exponent < 0.3


@pytest.mark.parametrize("num_workers", [2, 4])
def test_a_second_moment_is_frozen_as_on_real_ranks(num_workers: int) -> None:
    arguments: dict[str, Any] = {
        "workload": "digits-mlp",
        "workload_settings": {"width": 48, "optimizer": "adam"},
        "num_workers": num_workers,
        "clock": CLOCK,
    }
    with Distributed(**arguments) as real, Simulated(**arguments) as virtual:
        results = []
        for cluster in (real, virtual):
            cluster.reset(seed=2, method="ddp:frozen_every=8")
            results.append([cluster.run(32, bits=1) for _ in range(5)])
        real.verify_replicas()
        virtual.reset(seed=2)
        live = [virtual.run(32, bits=1) for _ in range(5)]
    assert results[0] == results[1]
    sent = [statistics.wire_bytes for statistics in results[0]]
    assert sent[0] >= sent[1] > sent[2] > sent[4] > live[4].wire_bytes


def test_a_run_goes_on_after_a_reset_that_is_refused() -> None:
    with simulated() as cluster:
        cluster.reset(0)
        cluster.run(2, bits=4)
        for refused in ({"seed": -1}, {"seed": 1.5}, {"seed": 1, "compressor": "nothing"}):
            with pytest.raises(ValueError, match=r"seed must be an integer|unknown compressor"):
                cluster.reset(**refused)
        assert cluster.run(2, bits=4).iteration == 4


def test_is_a_cluster_that_names_its_clock() -> None:
    with simulated() as cluster:
        assert isinstance(cluster, Cluster)
        assert (cluster.world_size, cluster.workload.name, cluster.clock) == (2, "digits-mlp", CLOCK)


def test_seconds_are_the_clocks_and_the_link_sets_its_rate() -> None:
    with simulated() as cluster:
        cluster.reset(seed=0, link=LinkEmulation(mbit_per_s=10))
        slow = cluster.run(2, bits=8)
        cluster.reset(seed=0, link=LinkEmulation(mbit_per_s=1000, latency_ms=1))
        fast = cluster.run(2, bits=8)
    assert slow.wire_seconds == pytest.approx(slow.wire_bytes * 8 / 1e7)
    assert fast.step_seconds == pytest.approx(0.01 + 0.001 + fast.wire_bytes * 8 / 1e9)
    assert fast.losses == slow.losses


def test_many_more_ranks_than_cores_learn() -> None:
    with simulated(num_workers=16, workload_settings={"width": 48, "batch_size": 8}) as cluster:
        cluster.reset(seed=0)
        first, last = cluster.run(5, bits=4), cluster.run(60, bits=3)
        assert last.losses[-1] < first.loss - 0.8
        assert cluster.evaluate()["accuracy"] > 0.5


def test_a_controller_decides_on_modelled_seconds() -> None:
    class Watcher(Scripted):
        def decide(self, statistics: IntervalStatistics) -> Width:
            _SEEN.append(statistics.compute_seconds)
            return super().decide(statistics)

    _SEEN.clear()
    with simulated() as cluster:
        cluster.reset(seed=0, controller=Watcher([2, 6, 6], interval=4))
        assert [cluster.run(4).bits for _ in range(3)] == [2, 6, 6]
    assert set(_SEEN) == {CLOCK.compute_seconds}


_SEEN: list[float] = []  # each rank decides with a copy of the controller


def test_a_controller_gets_the_trials_it_wants() -> None:
    class Trying(mqgrad.FixedBits):
        wants_parameters = True
        trial_widths = (2, 8)

        def decide(self, statistics: IntervalStatistics) -> Width:
            _SEEN.extend(len(parameter.trials) for parameter in statistics.parameters)
            return super().decide(statistics)

    _SEEN.clear()
    with simulated() as cluster:
        cluster.reset(seed=0, controller=Trying(4))
        cluster.run(Trying(4).interval)
    assert set(_SEEN) == {2}


def test_figures_beside_a_controller_repeat() -> None:
    """An interval that ends where the controller decides has that decision's figures, however late they come."""

    class Slow(mqgrad.FixedBits):
        def decide(self, statistics: IntervalStatistics) -> Width:
            time.sleep(0.05)
            return super().decide(statistics)

    def figures(controller: mqgrad.FixedBits) -> list[float]:
        with simulated() as cluster:
            cluster.reset(seed=0, controller=controller)
            return [cluster.run(5).gradient_signal for _ in range(4)]

    assert figures(Slow(4)) == figures(mqgrad.FixedBits(4))


def test_the_callers_random_numbers_and_threads_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    with simulated() as cluster:
        cluster.reset(seed=0)
        cluster.run(2, bits=4)
        cluster.evaluate()
    assert torch.equal(torch.rand(2), expected)
    assert torch.get_num_threads() == threads


def test_threads_end_with_the_run() -> None:
    before = threading.active_count()
    with simulated() as cluster:
        for seed in range(3):
            cluster.reset(seed)
            cluster.run(1, bits=4)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: simulated(clock="measured"), "clock must be a ModelClock"),
        (lambda: simulated(num_workers=0), "num_workers must be"),
        (lambda: simulated().reset(0, method="local-sgd"), "'local-sgd' is not simulated"),
        (lambda: simulated().reset(0, method="ddp:period=8"), "'ddp:period=8' is not simulated"),
        (lambda: simulated().reset(0, method="ddp:frozen_every=8"), "not SGD"),
        (lambda: simulated().reset(0, compressor="zip"), "zip"),
        (lambda: simulated().reset(0, compressor="none"), "'none' is not simulated"),
        (lambda: simulated().reset(0, controller="magic"), "magic"),
        (lambda: calibrate(simulated(), mbit_per_s=1), "measured seconds"),
    ],
)
def test_mistakes_are_explained(mistake: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mistake()


def test_run_needs_a_reset_and_either_a_width_or_a_controller() -> None:
    with simulated() as cluster:
        with pytest.raises(RuntimeError, match="reset"):
            cluster.run(1, bits=4)
        cluster.reset(0)
        with pytest.raises(ValueError, match="bits=None"):
            cluster.run(1)
        with pytest.raises(ValueError, match="width"):
            cluster.run(1, bits=9)


def test_collectives_in_process() -> None:
    meeting_point = MeetingPoint(3, timeout_seconds=10)
    results: dict[int, list[list]] = {}

    def work(rank: int) -> None:
        transport = InProcessTransport(meeting_point, rank)
        reduced, told = torch.tensor([1.0, rank]), torch.tensor([rank + 7])
        sent = torch.tensor([0, 1, 1, 2]) + 10 * rank  # two elements to rank 1
        transport.all_reduce_(reduced)
        transport.broadcast_(told)
        received = transport.start_all_to_all(sent, [1, 2, 1]).wait()
        uneven = transport.start_joined_all_gather(told.repeat(rank + 1), [1, 2, 3]).wait()
        results[rank] = [
            reduced.tolist(),
            told.tolist(),
            received.tolist(),
            transport.all_gather(told + rank).tolist(),
            uneven.tolist(),
        ]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    to_each = [[[0], [10], [20]], [[1, 1], [11, 11], [21, 21]], [[2], [12], [22]]]
    gathered = [[[7], [8], [9]], [7] * 6]
    assert results == {r: [[3.0, 3.0], [7], to_each[r], *gathered] for r in range(3)}


def test_a_rank_that_does_not_come_is_waited_for_within_bounds() -> None:
    transport = InProcessTransport(MeetingPoint(2, timeout_seconds=0.05), 0)
    with pytest.raises(RuntimeError, match="virtual rank 0 waited in vain"):
        transport.all_reduce_(torch.ones(2))


def test_calibration_takes_the_compute_seconds_of_a_real_run() -> None:
    with Distributed(**WORKLOAD, num_workers=1) as cluster:
        clock = calibrate(cluster, mbit_per_s=50, latency_ms=2, iterations=5)
    assert (clock.mbit_per_s, clock.latency_ms) == (50, 2)
    assert 1e-5 < clock.compute_seconds < 10


def test_a_run_that_was_interrupted_ends_at_once() -> None:
    """Ranks whose buckets came wait for one whose did not, and closing waits for them."""
    with simulated(num_workers=2, timeout_seconds=30) as cluster:
        cluster.reset(seed=0)
        assert cluster._run is not None

        def interrupted(_: Any) -> Any:
            raise KeyboardInterrupt

        cluster._run.ranks[1].reduce = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            cluster.run(1, bits=4)
        with pytest.raises(RuntimeError, match=r"call reset\(seed\)"):  # its ranks are at different batches
            cluster.run(1, bits=4)
        started = time.monotonic()
        cluster.reset(seed=1)
        assert time.monotonic() - started < 15
        cluster.run(1, bits=4)


def test_parameters_without_a_gradient_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated() as cluster:
        build_model = type(cluster.workload).build_model

        def with_a_spare_parameter(workload: Any) -> torch.nn.Module:
            model = build_model(workload)
            model.register_parameter("spare", torch.nn.Parameter(torch.zeros(2)))
            return model

        monkeypatch.setattr(type(cluster.workload), "build_model", with_a_spare_parameter)
        cluster.reset(seed=0)
        with pytest.raises(ValueError, match=r"rank 0: parameters took no part .*: spare;"):
            cluster.run(1, bits=4)
