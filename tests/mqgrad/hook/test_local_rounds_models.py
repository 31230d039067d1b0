"""Rounds of local iterations of models and loops that are not the plain case, beside the same averages by hand."""

import contextlib

import averages
import models
import pytest
import torch
from ranks import run_ranks
from rounds import assert_as_by_hand, by_hand, in_rounds, raw, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def bfloat16_model() -> nn.Module:
    return nn.Sequential(Cast(torch.bfloat16), models.small_model().bfloat16())


class Slope(nn.Module):
    """Its gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


@pytest.mark.parametrize("bits", [4, 16, 32])
def test_means_between_two_bfloat16_numbers_add_up(bits: float) -> None:
    """One rank moves to the next number below 1 in each round, the other stays: the mean lies between them."""
    rounds = 8

    def rank_main(rank: int) -> tuple[list[list[float]], list[float]]:
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits), period=2)
        ddp = models.compressed_ddp(model, state)
        seen = []
        for iteration in range(2 * rounds):
            optimizer.zero_grad()
            move = 2**-8 if rank == 0 and iteration % 2 == 0 else 0.0
            loss = ddp(torch.full((512,), move, dtype=torch.bfloat16))
            loss.backward()
            optimizer.step()
            state.step(loss)
            seen.append(model.weight.detach().float().unique().tolist())
        anchor = state.state_dict()["rounds"]["anchors"][0]
        state.close()
        return seen[1::2], anchor.unique().tolist()

    anchors = torch.tensor([1 - k * 2**-9 for k in range(1, rounds + 1)])
    held = [[value] for value in anchors.bfloat16().tolist()]
    assert run_ranks(rank_main) == [(held, [float(anchors[-1])])] * 2


@pytest.mark.parametrize("slow_momentum", [0.0, 0.5])
def test_a_bfloat16_model_follows_anchors_in_fp32(slow_momentum: float) -> None:
    def rank_main(rank: int) -> bytes:
        model = in_rounds(bfloat16_model(), rank, slow_momentum=slow_momentum)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        expected = by_hand(bfloat16_model, slow_momentum=slow_momentum)
        assert torch.equal(models.parameters_of(model), models.parameters_of(expected))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1


def test_an_interrupted_bfloat16_run_keeps_what_its_parameters_cannot_hold() -> None:
    def start() -> models.Run:
        model = bfloat16_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), period=3)
        return models.compressed_ddp(model, state, bucket_cap_mb=0.02), sgd(model), state

    def rank_main(rank: int) -> tuple[list[bytes], list[bytes]]:
        return averages.straight_and_resumed(start, rank, before=4, after=8)

    assert all(straight == resumed for straight, resumed in run_ranks(rank_main))


def two_dtypes() -> nn.Module:
    torch.manual_seed(0)
    half = nn.Sequential(Cast(torch.bfloat16), nn.Linear(64, 64).bfloat16(), nn.Tanh(), Cast(torch.float32))
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), half, nn.Linear(64, 4))


@pytest.mark.parametrize("bits", [4, 32])
def test_parameters_of_two_dtypes(bits: float) -> None:
    def rank_main(rank: int) -> bytes:
        model = in_rounds(two_dtypes(), rank, bits=bits)
        assert [p.dtype for p in model.parameters()] == [p.dtype for p in two_dtypes().parameters()]
        if bits == 32:
            assert_as_by_hand(model, by_hand(two_dtypes))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1


def normalized() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 4))


def test_running_statistics_are_rank_0s_or_with_no_sync_each_ranks_own() -> None:
    """DDP broadcasts buffers before a forward, but not under ``no_sync()``. Parameters are the same either way."""

    def rank_main(rank: int, local: bool) -> tuple[bytes, list[list[float]], list[list[float]]]:
        model = normalized()
        norm, before, after = model[1], [], []
        norm.register_forward_pre_hook(lambda *_: before.append(norm.running_mean.tolist()))
        norm.register_forward_hook(lambda *_: after.append(norm.running_mean.tolist()))
        in_rounds(model, rank, local=local)
        assert_as_by_hand(model, by_hand(normalized))
        return raw(model), before, after

    through, beside = (run_ranks(lambda rank, x=local: rank_main(rank, x)) for local in (False, True))
    assert len({parameters for parameters, _, _ in through + beside}) == 1
    for _, before, _ in through:
        assert before[1:] == through[0][2][:-1]
    for _, before, after in beside:
        assert before[3:] == after[2:-1]  # DDP still broadcasts before the first forward under no_sync()
    assert beside[0][1][3:] != beside[1][1][3:]


class Detour(nn.Module):
    """Uses ``aside`` where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.aside, self.after = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, detour: bool) -> torch.Tensor:
        x = torch.tanh(self.before(x))
        return self.after(torch.tanh(self.aside(x)) if detour else x)


@pytest.mark.parametrize("local", [False, True])
def test_a_parameter_that_one_rank_leaves_out_now_and_then(local: bool) -> None:
    def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int):
        optimizer.zero_grad()
        x, y = models.batch(rank, iteration)
        loss = nn.functional.cross_entropy(model(x, detour=rank == 0 or iteration % 2 == 1), y)
        loss.backward()
        optimizer.step()
        return loss

    def rank_main(rank: int) -> bytes:
        model = in_rounds(Detour(), rank, take_step, local=local, find_unused_parameters=True)
        assert_as_by_hand(model, by_hand(Detour, take_step))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1


@pytest.mark.parametrize("slow_momentum", [0.0, 0.5])
def test_a_rank_alone_codes_nothing_and_has_its_slow_momentum(slow_momentum: float) -> None:
    def rank_main(rank: int) -> None:
        model = in_rounds(models.small_model(), rank, bits=1, slow_momentum=slow_momentum)
        expected = by_hand(models.small_model, world_size=1, slow_momentum=slow_momentum)
        assert_as_by_hand(model, expected)

    run_ranks(rank_main, 1)


class Shared(nn.Module):
    """A weight used twice, one that is frozen, and one that is a transposed view of memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.once, self.frozen, self.again = (nn.Linear(64, 64, bias=False) for _ in range(3))
        self.again.weight = self.once.weight
        self.frozen.weight.requires_grad_(False)
        self.memory = 0.1 * torch.randn(300)
        self.view = nn.Parameter(self.memory[:256].view(64, 4).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.once, self.frozen, self.again):
            x = torch.tanh(layer(x))
        return nn.functional.linear(x, self.view)


@pytest.mark.parametrize("bits", [4, 32])
def test_frozen_tied_and_viewed_parameters(bits: float) -> None:
    def rank_main(rank: int) -> bytes:
        model = in_rounds(Shared(), rank, bits=bits)
        assert isinstance(model, Shared)
        assert model.again.weight is model.once.weight
        assert torch.equal(model.frozen.weight, Shared().frozen.weight)
        assert torch.equal(model.memory[:256].view(64, 4).t(), model.view)
        assert torch.equal(model.memory[256:], Shared().memory[256:])
        if bits == 32:
            assert_as_by_hand(model, by_hand(Shared))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1


@pytest.mark.parametrize("gradient_as_bucket_view", [False, True])
@pytest.mark.parametrize("through", [False, True])
def test_gradients_that_add_up_over_two_backwards(gradient_as_bucket_view: bool, through: bool) -> None:
    """The first of them under ``no_sync()``, or both through the hook."""

    def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iteration: int):
        optimizer.zero_grad()
        alone = through or not isinstance(model, DistributedDataParallel)
        with contextlib.nullcontext() if alone else model.no_sync():
            models.backward(model, rank, 2 * iteration)
        loss = models.backward(model, rank, 2 * iteration + 1)
        optimizer.step()
        return loss

    def rank_main(rank: int) -> bytes:
        make = models.small_model
        model = in_rounds(make(), rank, take_step, gradient_as_bucket_view=gradient_as_bucket_view)
        assert_as_by_hand(model, by_hand(make, take_step))
        return raw(model)

    assert len(set(run_ranks(rank_main))) == 1
