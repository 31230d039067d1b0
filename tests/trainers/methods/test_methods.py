"""Training methods that are not DDP with a hook, on real ranks."""

import math
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from mqgrad.compressors import make_compressor
from mqgrad.trainers import Distributed, LinkEmulation
from mqgrad.trainers.clusters.cluster import Cluster
from mqgrad.trainers.clusters.errors import ReplicaMismatchError
from mqgrad.trainers.methods import Setup, has_width, make_method
from mqgrad.trainers.methods.averaging import SlowMo
from mqgrad.trainers.methods.backup import BackupWorkers
from mqgrad.trainers.methods.overlap import OverlapLocalSGD

POWERSGD = "plain-ddp:hook=powersgd,rank=2"


def losses_of(cluster: Cluster, method: str, iterations: int = 16) -> list[float]:
    cluster.reset(seed=5, method=method)
    return list(cluster.run(iterations).losses)


@pytest.mark.parametrize("method", ["no-sync", "overlap-local-sgd", POWERSGD])
def test_learns(cluster: Distributed, method: str) -> None:
    """The others take the steps of one that does: see below."""
    cluster.reset(seed=0, method=method)
    before = cluster.evaluate()["loss"]
    statistics = cluster.run(80)
    assert len(statistics.losses) == 80
    assert (statistics.wire_bytes > 0) == (method != "no-sync")
    assert cluster.evaluate()["loss"] < before - 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [("frozen_every=8,period=4", "averages of gradients"), ("frozen_every=-1", "every must be")],
)
def test_a_frozen_second_moment_is_for_averages_of_gradients(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_method(f"ddp:{arguments}")


@pytest.mark.parametrize("method", ["local-sgd:period=4", "slowmo:period=4"])
def test_replicas_differ_between_averages_and_meet_at_each(cluster: Distributed, method: str) -> None:
    cluster.reset(seed=0, method=method)
    cluster.run(3)
    with pytest.raises(ReplicaMismatchError):
        cluster.verify_replicas()
    cluster.run(1)
    cluster.verify_replicas()


def test_without_communication_a_slow_link_costs_nothing_and_replicas_part(cluster: Distributed) -> None:
    cluster.reset(seed=0, method="no-sync", link=LinkEmulation(mbit_per_s=1e-3))
    alone = cluster.run(3)
    assert (alone.wire_bytes, alone.wire_seconds) == (0, 0)
    with pytest.raises(ValueError, match="never become equal"):
        cluster.verify_replicas()


@pytest.mark.parametrize("method", ["plain-ddp", "plain-ddp:batch_threads=true"])
@pytest.mark.parametrize("link", [None, LinkEmulation(mbit_per_s=400)])
def test_plain_ddp_takes_the_steps_of_our_hook_at_32_bits(
    cluster: Distributed, link: LinkEmulation | None, method: str
) -> None:
    cluster.reset(seed=5, link=link)
    ours = cluster.run(6, bits=32)
    cluster.reset(seed=5, link=link, method=method)
    plain = cluster.run(6)
    assert plain.losses == ours.losses
    assert ours.wire_bytes - 200 < plain.wire_bytes < ours.wire_bytes
    cluster.verify_replicas()


@pytest.mark.parametrize("batch_threads", ["false", "true"])
@pytest.mark.parametrize("link", [None, LinkEmulation(mbit_per_s=400)])
def test_pytorchs_fp16_hook_sends_half_and_steps_almost_the_same(
    cluster: Distributed, link: LinkEmulation | None, batch_threads: str
) -> None:
    cluster.reset(seed=5, method="plain-ddp")
    full = cluster.run(6)
    exact = cluster.verify_replicas()
    cluster.reset(seed=5, link=link, method=f"plain-ddp:hook=fp16,batch_threads={batch_threads}")
    half = cluster.run(6)
    assert cluster.verify_replicas() != exact
    assert half.losses == pytest.approx(full.losses, rel=1e-3)
    assert half.wire_bytes == full.wire_bytes / 2
    assert (half.bits, full.bits) == (16, 32)
    if link is not None:
        assert half.wire_seconds >= 8 * half.wire_bytes / 400e6


@pytest.mark.parametrize("method", [POWERSGD, f"{POWERSGD},batch_threads=true"])
def test_pytorchs_powersgd_sends_everything_twice_and_then_two_thin_matrices(
    cluster: Distributed, method: str
) -> None:
    cluster.reset(seed=5, method="plain-ddp")
    dense = cluster.run(2)
    cluster.reset(seed=5, method=method)
    start = cluster.run(2)
    assert start.losses == pytest.approx(dense.losses, rel=1e-6)
    assert start.wire_bytes == dense.wire_bytes
    cluster.verify_replicas()
    hidden, output = 2 * (64 + 64) + 64, 2 * (64 + 10) + 10  # elements of P, Q and the bias
    for iterations in (1, 5):
        assert cluster.run(iterations).wire_bytes == 4 * (3 * hidden + output)
        cluster.verify_replicas()


def test_post_local_sgd_is_ddp_at_first_and_local_sgd_then(cluster: Distributed) -> None:
    """As PyTorch has it, parameters are averaged after the first local iteration and every ``period`` from there."""
    cluster.reset(seed=5)
    ddp = cluster.run(6, bits=32)
    cluster.reset(seed=5, method="post-local-sgd:warmup=6,period=3")
    start = cluster.run(6)
    assert start.losses == pytest.approx(ddp.losses, rel=1e-3)
    # A gradient and a vector of parameters are as large; DDP's own ranks send their agreement, too.
    assert ddp.wire_bytes - 200 < start.wire_bytes < ddp.wire_bytes
    cluster.verify_replicas()
    cluster.run(1)
    cluster.verify_replicas()
    apart = cluster.run(2)
    assert apart.wire_bytes == 0
    with pytest.raises(ReplicaMismatchError):
        cluster.verify_replicas()
    met = cluster.run(1)
    cluster.verify_replicas()
    assert met.wire_bytes == pytest.approx(start.wire_bytes)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("ddp", [1, 3, 4, 6]),
        ("plain-ddp", [1, 3, 4, 6]),
        ("ddp:period=3", [3, 6, 9, 12]),
        ("ddp:period=4,period_rule=adacomm:1e-6", [4, 8, 10, 12]),
        ("slowmo:period=3", [3, 6, 9, 12]),
        ("overlap-local-sgd:period=3", [3, 6, 9, 12]),
        ("post-local-sgd:warmup=2,period=3", [1, 3, 6, 9]),
    ],
)
def test_a_run_may_go_on_to_the_next_exchange(cluster: Distributed, method: str, expected: list[int]) -> None:
    """One iteration, two, one, two, and on. AdaComm halves its period of 4 after two rounds."""
    cluster.reset(seed=5, method=method, controller="fixed:4,interval=2" if has_width(method) else None)
    assert [cluster.run(count, to_exchange=True).iteration for count in (1, 2, 1, 2)] == expected
    if not method.startswith("overlap"):
        cluster.verify_replicas()


def test_averaging_every_iteration_is_synchronous_sgd() -> None:
    """Averaging parameters after plain SGD steps equals averaging gradients."""
    with Distributed("logreg", {"batch_size": 32}, num_workers=2) as cluster:
        local = losses_of(cluster, "local-sgd:period=1")
        cluster.reset(seed=5)
        ddp = list(cluster.run(16, bits=32).losses)
    assert local == pytest.approx(ddp, rel=1e-3)


def test_slowmo_without_momentum_is_local_sgd(cluster: Distributed) -> None:
    slow = losses_of(cluster, "slowmo:period=4,beta=0,alpha=1")
    assert slow == pytest.approx(losses_of(cluster, "local-sgd:period=4"), rel=1e-3)
    assert losses_of(cluster, "slowmo:period=4,beta=0.7") != pytest.approx(slow, rel=1e-3)


def test_overlap_pulls_replicas_to_an_anchor_that_lags(cluster: Distributed) -> None:
    """The first pull is to the initial weights: with a = 1 the replicas begin anew, all alike."""
    cluster.reset(seed=0, method="overlap-local-sgd:period=4,pull=1")
    start = cluster.evaluate()
    cluster.run(4)
    assert cluster.evaluate() == start
    with pytest.raises(ValueError, match="never become equal"):
        cluster.verify_replicas()


def test_an_average_does_not_travel_while_the_clock_stands_still(cluster: Distributed) -> None:
    link = LinkEmulation(mbit_per_s=1, latency_ms=0)
    cluster.reset(seed=0, method="overlap-local-sgd:period=2", link=link)
    first = cluster.run(2)
    assert first.wire_bytes == 0  # held back until the next interval
    time.sleep(0.4)
    second = cluster.run(2)
    assert second.wire_bytes > 0
    assert second.seconds >= 8 * 2 * second.wire_bytes / 1e6  # bytes are a mean over two iterations


def test_backup_workers_without_backups_is_ddp(cluster: Distributed) -> None:
    backup = losses_of(cluster, "backup-workers:backups=0,mean_delay_ms=0")
    cluster.reset(seed=5)
    assert backup == pytest.approx(list(cluster.run(16, bits=32).losses), rel=1e-3)
    dropped = losses_of(cluster, "backup-workers:backups=1,mean_delay_ms=1")
    assert dropped != pytest.approx(backup, rel=1e-3)
    cluster.verify_replicas()


def setup_of(model: torch.nn.Module, learning_rate: float = 0.001) -> Setup:
    return Setup(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
        group=dist.group.WORLD,
        seed=0,
        link=None,
        controller=None,
        compressor=make_compressor(),
        timeout_seconds=30,
    )


def test_without_delays_the_last_ranks_are_the_backups() -> None:
    def averaged(rank: int) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        way = BackupWorkers(backups=1, mean_delay_ms=0)
        way.start(setup_of(model))
        model.weight.grad = torch.full((1, 1), rank + 1.0)
        way._average_gradients()
        way.close()
        return model.weight.grad.item()

    assert run_ranks(averaged, world_size=3) == [1.5] * 3


def test_backups_wait_for_the_slowest_of_the_others_and_a_pause_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of delays of 0.02, 0.5 and 0.08 s with one backup 0.08; it is waited for, and not computed."""
    delays = torch.tensor([0.02, 0.5, 0.08], dtype=torch.float64)
    monkeypatch.setattr(BackupWorkers, "_delays", lambda _: delays)

    def timed(rank: int) -> tuple[float, float]:
        model = torch.nn.Linear(1, 1, bias=False)
        way = BackupWorkers(backups=1)
        way.start(setup_of(model))
        time.sleep(0.6)
        way.begin_interval(1, None)
        model.weight.grad = torch.ones(1, 1)
        way.step(torch.tensor(1.0))
        costs = way.end_interval().statistics
        way.close()
        return costs.step_seconds, costs.compute_seconds

    for step_seconds, compute_seconds in run_ranks(timed, world_size=3):
        assert 0.08 <= step_seconds < 0.5
        assert compute_seconds < step_seconds - 0.07


def set_weight(model: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def test_slow_steps_are_those_of_the_paper() -> None:
    """Wang et al. 2020, algorithm 1 by hand: γ = 0.1, α = 0.8, β = 0.5, from x₀ = 1; means 0.6 and then 0.48 give
    u = 4 and 0.5·4 + (0.68 − 0.48)/0.1 = 4."""

    def stepped(rank: int) -> list[float]:
        model = torch.nn.Linear(1, 1, bias=False)
        set_weight(model, 1.0)
        way = SlowMo(period=1, alpha=0.8, beta=0.5)
        way.start(setup_of(model, learning_rate=0.1))
        seen = []
        for mean in (0.6, 0.48):
            set_weight(model, mean + (0.1 if rank else -0.1))
            way.exchange()
            seen.append(model.weight.item())
        way.close()
        return seen

    assert run_ranks(stepped, world_size=2) == [pytest.approx([0.68, 0.36])] * 2


def test_overlapped_averages_move_the_anchor_a_round_late() -> None:
    """Wang, Liang, Joshi 2020 by hand: a = 0.6, β = 0.5, from z = 1. The first average, of replicas 0.6 and 1.0,
    moves z to 0.8, the second, of 0.68 and 0.76, by −0.1 − 0.08 to 0.62."""

    def pulled(rank: int) -> list[float]:
        model = torch.nn.Linear(1, 1, bias=False)
        set_weight(model, 1.0)
        way = OverlapLocalSGD(period=1, pull=0.6, beta=0.5)
        way.start(setup_of(model))
        way.begin_interval(10, None)
        seen = []
        for values in ((0.0, 1.0), (0.5, 0.7), (1.0, 1.0)):
            set_weight(model, values[rank])
            way.exchange()
            seen.append(model.weight.item())
        way.end_interval()
        way.close()
        return seen

    first, second = run_ranks(pulled, world_size=2)
    assert first == pytest.approx([0.6, 0.68, 0.772])
    assert second == pytest.approx([1.0, 0.76, 0.772])


def test_a_slow_step_where_the_learning_rate_has_fallen_to_zero_is_the_average() -> None:
    """As at the end of a linear decay; a slow step is divided by the learning rate."""

    def averaged(rank: int) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        way = SlowMo(period=1)
        way.start(setup_of(model, learning_rate=0.0))
        with torch.no_grad():
            model.weight.fill_(rank + 1.0)
        way.exchange()
        way.close()
        return model.weight.item()

    assert run_ranks(averaged, world_size=2) == [1.5] * 2


def test_fewer_averages_are_fewer_bytes_and_the_link_is_paced(cluster: Distributed) -> None:
    link = LinkEmulation(mbit_per_s=20, latency_ms=0)
    cluster.reset(seed=0, method="post-local-sgd:warmup=2", link=link)
    synchronous = cluster.run(2)
    assert synchronous.wire_seconds >= 0.98 * 8 * synchronous.wire_bytes / 20e6
    assert synchronous.compute_seconds < synchronous.step_seconds - 0.5 * synchronous.wire_seconds
    wire = {}
    for period in (2, 8):
        cluster.reset(seed=0, method=f"local-sgd:period={period}", link=link)
        wire[period] = cluster.run(16)
    assert wire[2].wire_bytes == pytest.approx(4 * wire[8].wire_bytes)
    # 8 bits a byte at 20 Mbit/s: an emulated link takes at least that long, but for the microseconds in which the
    # caller is between starting and waiting.
    assert wire[2].wire_seconds >= 0.98 * 8 * wire[2].wire_bytes / 20e6
    assert math.isclose(wire[2].bits, 32)


def test_mistakes_are_named(cluster: Distributed) -> None:
    with pytest.raises(ValueError, match=r"unknown method 'local'; known: .*slowmo"):
        cluster.reset(seed=0, method="local")
    with pytest.raises(ValueError, match="unknown argument 'tau'; known: period"):
        make_method("local-sgd:tau=4")
    with pytest.raises(ValueError, match=r"unknown hook 'bf16'; known: none, fp16, powersgd"):
        make_method("plain-ddp:hook=bf16")
    with pytest.raises(ValueError, match=r"needs a rank, such as hook=powersgd,rank=4"):
        make_method("plain-ddp:hook=powersgd")
    with pytest.raises(ValueError, match=r"hook 'fp16' with rank 4: .* no other hook has one"):
        make_method("plain-ddp:hook=fp16,rank=4")
    with pytest.raises(ValueError, match="rank must be a whole number of at least 1, not 0"):
        make_method("plain-ddp:hook=powersgd,rank=0")
    with pytest.raises(ValueError, match="a period rule decides where a controller does"):
        cluster.reset(seed=0, method="ddp:period_rule=adacomm")
    with pytest.raises(ValueError, match="unknown period rule 'fast'; known: adacomm, delay-ratio"):
        make_method("ddp:period_rule=fast")
    with pytest.raises(ValueError, match="has no width for a controller"):
        cluster.reset(seed=0, method="slowmo", controller="fixed:4")
    cluster.reset(seed=0, method="slowmo")
    with pytest.raises(ValueError, match="leave bits out"):
        cluster.run(2, bits=4)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize(
    "setting", ["backup-workers:mean_delay_ms", "slowmo:beta", "slowmo:alpha", "overlap-local-sgd:pull"]
)
def test_settings_that_are_no_finite_number_are_named(setting: str, value: str) -> None:
    name = setting.partition(":")[2]
    with pytest.raises(
        ValueError, match=f"'{setting}={value}': {name} must be a finite number .* not {value}"
    ):
        make_method(f"{setting}={value}")


def test_backups_that_leave_no_rank_are_refused_and_cost_no_worker(cluster: Distributed) -> None:
    with pytest.raises(ValueError, match="2 backups leave none of 2 ranks: give at most 1"):
        cluster.reset(seed=0, method="backup-workers:backups=2")
    cluster.reset(seed=0, method="backup-workers:backups=1,mean_delay_ms=0")
    assert cluster.run(1).iteration == 1


@pytest.mark.parametrize("hook", ["", "hook=fp16,", "hook=powersgd,rank=1,"])
def test_ddp_with_batch_threads_averages_over_a_group_of_our_own(hook: str) -> None:
    def rank_main(rank: int) -> list[bool]:
        seen = []
        for batch_threads in ("true", "false"):
            model = torch.nn.Linear(64, 8)
            group = dist.group.WORLD
            method = make_method(f"plain-ddp:{hook}batch_threads={batch_threads}")
            ddp = method.start(
                Setup(
                    model=model,
                    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                    group=group,
                    seed=0,
                    link=None,
                    controller=None,
                    compressor="quantized",
                    timeout_seconds=10.0,
                )
            )
            seen.append(ddp.process_group is method._transport.group is not group)
            method.close()
        return seen

    assert run_ranks(rank_main) == [[True, False]] * 2
