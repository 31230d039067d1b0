"""What scripts do with DDP besides the plain loop: its options, mixed precision, compilation, several models."""

import contextlib
from collections.abc import Callable

import models
import pytest
import torch
from ranks import run_ranks
from rounds import assert_as_by_hand, by_hand, in_rounds, raw, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad

ITERATIONS, BATCHES = 30, 4
Loop = Callable[[DistributedDataParallel, mqgrad.CompressionState, int], list[float]]


def plain_loop(ddp: nn.Module, state: mqgrad.CompressionState, rank: int) -> list[float]:
    """Train and return the loss of each iteration."""
    optimizer, losses = sgd(ddp), []
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        loss = models.backward(ddp, rank, iteration % BATCHES)
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        state.step(loss)
        losses.append(float(loss))
    return losses


def compiled_loop(ddp: DistributedDataParallel, state: mqgrad.CompressionState, rank: int) -> list[float]:
    return plain_loop(torch.compile(ddp, backend="aot_eager"), state, rank)


def autocast_loop(ddp: DistributedDataParallel, state: mqgrad.CompressionState, rank: int) -> list[float]:
    ddp.forward = torch.autocast("cpu", torch.bfloat16)(ddp.forward)
    return plain_loop(ddp, state, rank)


def trained(rank: int, loop: Loop, period: int, **options: object) -> tuple[bytes, float, float]:
    """The model's bytes at the end, and the loss of the first and the last iterations."""
    model = models.small_model()
    state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=period)
    losses = loop(models.compressed_ddp(model, state, **{"bucket_cap_mb": 0.02, **options}), state, rank)
    assert state.replicas_are_equal
    state.close()
    return raw(model), sum(losses[:BATCHES]), sum(losses[-BATCHES:])


def assert_equal_and_learning(results: list[tuple[bytes, float, float]]) -> None:
    assert len({parameters for parameters, _, _ in results}) == 1
    assert all(after < 0.95 * before for _, before, after in results)


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("option", ["static_graph", "gradient_as_bucket_view"])
def test_options_of_ddp(option: str, period: int) -> None:
    assert_equal_and_learning(run_ranks(lambda rank: trained(rank, plain_loop, period, **{option: True})))


class TwoDtypes(nn.Module):
    """Each in buckets of its own, in DDP's first iteration, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = models.small_model(), nn.Linear(4, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).double()).float()


class UnusedHead(nn.Module):
    """The first bucket of the backward has parameters only that nobody uses; or the last has."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        unused, none = nn.Sequential(nn.Linear(64, 80), nn.Linear(80, 80)), nn.Identity()
        self.first, self.body, self.last = (
            (unused, models.small_model(), none) if is_last else (none, models.small_model(), unused)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


ODD_BUCKETS = {
    "none is called the last": (TwoDtypes, {"static_graph": True}),
    "the first is skipped": (
        lambda: UnusedHead(is_last=False),
        {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
    ),
    "the last is skipped": (
        lambda: UnusedHead(is_last=True),
        {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
    ),
}


@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("odd", ODD_BUCKETS)
def test_iterations_end_though_ddp_calls_no_bucket_the_first_or_the_last(odd: str, bits: float) -> None:
    make, options = ODD_BUCKETS[odd]

    def rank_main(rank: int) -> tuple[bytes, int, int]:
        torch.manual_seed(0)
        model = make()
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits, interval=5))
        ddp = models.compressed_ddp(model, state, bucket_cap_mb=0.02, **options)
        plain_loop(ddp, state, rank)
        state.drain()
        state.close()
        assert state.last_statistics is not None
        return raw(model), state.totals.iterations, state.last_statistics.iteration

    first, second = run_ranks(rank_main)
    assert first == second
    assert first[1:] == (ITERATIONS, ITERATIONS)


@pytest.mark.parametrize("odd", ODD_BUCKETS)
def test_rounds_take_every_bucket_once_though_ddp_calls_none_the_first_or_the_last(odd: str) -> None:
    make, options = ODD_BUCKETS[odd]

    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return make()

    def rank_main(rank: int) -> bytes:
        model = in_rounds(seeded(), rank, **options)
        assert_as_by_hand(model, by_hand(seeded))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1


def test_sparse_gradients_are_refused_in_a_sentence() -> None:
    def rank_main(rank: int) -> None:
        model = nn.Embedding(50, 4, sparse=True)
        for period, bits in ((1, 4), (2, 4), (1, 32)):
            state = mqgrad.CompressionState(mqgrad.FixedBits(bits), period=period)
            ddp = models.compressed_ddp(model, state)
            with pytest.raises(TypeError, match=rf"rank {rank}: .*\(50, 4\).* sparse=False"):
                ddp(torch.arange(3)).sum().backward()
            state.close()

    run_ranks(rank_main)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).abs()


def test_complex_parameters_are_refused_in_a_sentence() -> None:
    """Of whose gradients torch's views show half: the other half was never averaged, without a word."""

    def rank_main(rank: int) -> None:
        for period, bits in ((1, 4), (2, 4), (2, 32)):
            state = mqgrad.CompressionState(mqgrad.FixedBits(bits), period=period)
            ddp = models.compressed_ddp(Complex(), state)
            with pytest.raises(TypeError, match=rf"rank {rank}: .*\(8, 3\).* are complex"):
                ddp(torch.ones(3)).sum().backward()
            state.close()

    run_ranks(rank_main)


@pytest.mark.parametrize("is_synchronous", [False, True])
@pytest.mark.parametrize("bits", [0.25, 1])
def test_what_is_thrown_away_is_handed_over_later_unless_under_no_sync(
    bits: float, is_synchronous: bool
) -> None:
    """As the gradients that a generator's backward leaves in the discriminator."""

    def rank_main(rank: int) -> float:
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits))
        ddp = models.compressed_ddp(model, state)
        for iteration in range(4):
            with contextlib.nullcontext() if is_synchronous else ddp.no_sync():
                models.backward(ddp, rank, iteration)
            ddp.zero_grad()
            loss = 0.0 * ddp(models.batch(rank, iteration)[0]).sum()
            loss.backward()
            state.step(loss)
        moved = float(models.gradient_of(model).abs().max())
        state.close()
        return moved

    for moved in run_ranks(rank_main):
        assert (moved > 0.0) == is_synchronous


@pytest.mark.parametrize("period", [1, 3])
def test_compiled(period: int) -> None:
    """Which divides the model at DDP's buckets, and refuses a first one that is larger than the others."""
    results = run_ranks(lambda rank: trained(rank, compiled_loop, period, bucket_cap_mb=25), timeout=100)
    assert_equal_and_learning(results)


@pytest.mark.parametrize("period", [1, 3])
def test_mixed_precision(period: int) -> None:
    assert_equal_and_learning(run_ranks(lambda rank: trained(rank, autocast_loop, period)))


@pytest.mark.parametrize("period", [1, 3])
def test_a_step_that_a_gradient_scaler_skips(period: int) -> None:
    """Rank 0 alone overflows. Where gradients are averaged, all ranks have to see it, or they would part."""

    def loop(ddp: DistributedDataParallel, state: mqgrad.CompressionState, rank: int) -> list[float]:
        optimizer, losses = sgd(ddp), []
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
        for iteration in range(ITERATIONS):
            optimizer.zero_grad()
            x, y = models.batch(rank, iteration % BATCHES)
            loss = nn.functional.cross_entropy(ddp(x), y)
            scaled = scaler.scale(loss)
            (scaled * torch.inf if rank == 0 and iteration % 10 == 4 else scaled).backward()
            scaler.step(optimizer)
            scaler.update()
            state.step(loss)
            losses.append(float(loss))
        scales.append(scaler.get_scale())
        return losses

    scales: list[float] = []
    results = run_ranks(lambda rank: (trained(rank, loop, period), scales[0]))
    assert_equal_and_learning([result for result, _ in results])
    assert (len({scale for _, scale in results}) == 1) == (period == 1)


def test_two_models_with_a_state_each() -> None:
    """Iteration by iteration in turn they become what they become alone."""
    kinds = ((0, 4, 1), (1, 1, 3))  # seed, bits, period

    def rank_main(rank: int, kinds: tuple[tuple[int, float, int], ...]) -> list[bytes]:
        nets = [models.small_model(seed=seed) for seed, _, _ in kinds]
        states = [mqgrad.CompressionState(mqgrad.FixedBits(bits), period=period) for _, bits, period in kinds]
        ddps = [models.compressed_ddp(net, state) for net, state in zip(nets, states, strict=True)]
        optimizers = [sgd(net) for net in nets]
        for iteration in range(9):
            for ddp, optimizer, state in zip(ddps, optimizers, states, strict=True):
                optimizer.zero_grad()
                loss = models.backward(ddp, rank, iteration)
                optimizer.step()
                state.step(loss)
        for state in states:
            state.close()
        return [raw(net) for net in nets]

    first, second = (run_ranks(lambda rank, kind=kind: rank_main(rank, (kind,)))[0][0] for kind in kinds)
    assert run_ranks(lambda rank: rank_main(rank, kinds)) == [[first, second]] * 2


@pytest.mark.parametrize(
    ("bits", "period", "bucket_cap_mb"), [(1, 1, 25), (1, 1, 0.02), (32, 1, 25), (1, 2, 0.02)]
)
def test_two_models_with_one_state_are_refused(bits: int, period: int, bucket_cap_mb: float) -> None:
    """Each would have what it is owed forgotten by the other."""

    def rank_main(rank: int) -> list[str]:
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits), period=period)
        ddps = [
            models.compressed_ddp(models.small_model(seed=seed), state, bucket_cap_mb=bucket_cap_mb)
            for seed in (0, 1)
        ]
        told = []
        for _ in range(2):
            for ddp in ddps:
                try:
                    models.backward(ddp, rank, 0)
                except RuntimeError as error:
                    told.append(str(error))
        state.close()
        return told

    for rank, told in enumerate(run_ranks(rank_main)):
        assert len(told) == 1
        assert f"rank {rank}: parameters of two models come in turn" in told[0]


def train_with_join(rank: int, **settings: int) -> None:
    """``DDP.join()`` lets hooks run on a rank that is out of data, but not the training loop's ``step()``."""
    state = mqgrad.CompressionState(mqgrad.FixedBits(4, interval=5), **settings)
    ddp = models.compressed_ddp(models.small_model(), state)
    optimizer = sgd(ddp)
    with ddp.join():
        for iteration in range(20 - 16 * rank):
            optimizer.zero_grad()
            loss = models.backward(ddp, rank, iteration)
            optimizer.step()
            state.step(loss)


def test_a_rank_that_has_joined_early_is_named() -> None:
    def rank_main(rank: int) -> str:
        with pytest.raises(RuntimeError, match="disagree about the reported losses") as raised:
            train_with_join(rank)
        return str(raised.value)

    for message in run_ranks(rank_main):
        assert "rank 0: 5, rank 1: 4" in message


def test_in_rounds_one_that_waits_for_a_rank_that_has_joined_is_told_of_join() -> None:
    def rank_main(rank: int) -> str:
        with pytest.raises(RuntimeError) as raised:
            train_with_join(rank, period=3, timeout_seconds=2)
        return str(raised.value)

    assert "which DDP.join() does not make up for" in run_ranks(rank_main)[0]
