"""Widths below one bit through the hook, on real ranks, and what they mean to controllers and observations."""

import copy

import models
import pytest
import torch
from intervals import statistics
from ranks import run_cases, run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.codecs.quantization_noise import ROTATED_GAMMA, code_noise, sparse_noise
from mqgrad.codecs.rotation import FEW_BITS, ROTATED_WIDTHS
from mqgrad.compressors import Quantized
from mqgrad.compressors.rotated import Rotated
from mqgrad.controllers import make_controller
from mqgrad.policies.observation import ObservationSchema
from mqgrad.policies.observer import Observer
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.widths import SPARSE_WIDTHS, WIDTHS, check_width


def make_interval(**fields: object) -> IntervalStatistics:
    defaults = {"bits": 1 / 4, "world_size": 4, "step_seconds": 0.1, "compute_seconds": 0.05}
    return statistics(**defaults | {"gradient_noise": 0.5, "peak_energy": 8.0} | fields)


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_rank_ends_with_the_same_bytes_and_few_are_sent(world_size: int) -> None:
    def rank_main(rank: int, bits: float):
        model = models.small_model(width=256)
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits))
        ddp = models.compressed_ddp(model, state)
        gradients = []
        for iteration in range(3):
            model.zero_grad()
            x = torch.randn(4, 256, generator=torch.Generator().manual_seed(rank + 10 * iteration))
            ddp(x).square().mean().backward()
            gradients.append(models.gradient_of(model).numpy().tobytes())
        state.close()
        return gradients, state.totals.wire_bytes / 3, state.totals.mean_bits

    numel = sum(p.numel() for p in models.small_model(width=256).parameters())
    whole = 2 * (world_size - 1) / world_size * numel / 8  # bytes at one bit
    agreement = (world_size - 1) * 8 * 8
    cases = [(1 / 2,), (1 / 16,), (1 / 64,)]
    for (bits,), results in run_cases(rank_main, cases, world_size).items():
        assert len({tuple(gradients) for gradients, _, _ in results}) == 1
        for _, sent, mean_bits in results:
            assert mean_bits == bits
            assert sent - agreement < 1.05 * bits * whole + 50 * world_size


@pytest.mark.parametrize(
    "widths",
    [[1 / 64, 4, 1 / 4, 1, 1 / 16, 32, 1 / 2, 8, 1 / 32, 16], [1 / 64] * 30 + [32], [1 / 8, 1]],
)
def test_feedback_loses_nothing_through_width_changes(widths: list[float]) -> None:
    """What was applied plus what is owed is the sum of the exact means, and what is owed stays bounded."""

    def rank_main(rank: int):
        model = torch.nn.Linear(2048, 4, bias=False)
        state = mqgrad.CompressionState(Scripted(widths, interval=1))
        ddp = models.compressed_ddp(model, state)
        state.mark()
        applied, exact, owed = 0.0, 0.0, []
        for iteration in range(62):
            both = [
                torch.randn(1, 2048, generator=torch.Generator().manual_seed(2 * iteration + r))
                for r in range(2)
            ]
            model.zero_grad()
            loss = ddp(both[rank]).sum()
            loss.backward()
            state.step(loss)
            applied = applied + model.weight.grad[0]
            exact = exact + (both[0] + both[1])[0] / 2
            owed.append((applied - exact).norm().item() / both[0].norm().item())
        used = [bits for bits in range(62) if widths[bits % len(widths)] == 32]
        residuals = state.state_dict()["compressor"]["push_feedback"]
        state.close()
        owns = residuals[0][:2048] if residuals else torch.zeros(2048)  # it has none after 32 bits
        return owed, used, (applied.numpy(), owns.numpy(), exact.numpy())

    results = run_ranks(rank_main)
    owed, dense, (applied, _, exact) = results[0]
    owns = [residual for _, _, (_, residual, _) in results]
    assert applied + sum(owns) / 2 == pytest.approx(exact, abs=1e-3)
    assert all(owed[i] < 1e-5 * 62 for i in dense)  # a dense iteration repays everything
    # Gradients are independent here: owed in full since the start they would be about √62/√2 of one.
    assert max(owed) < 10


@pytest.mark.parametrize("optimizer", ["momentum SGD", "Adam"])
def test_training_goes_on_at_every_width(optimizer: str) -> None:
    """A small classifier learns at each width in turn: its loss falls, at the narrowest ones slowly."""

    def rank_main(rank: int):
        falls = {}
        for bits in SPARSE_WIDTHS:
            model = models.small_model()
            state = mqgrad.CompressionState(mqgrad.FixedBits(bits))
            ddp = models.compressed_ddp(model, state)
            if optimizer == "Adam":
                steps = torch.optim.Adam(model.parameters(), lr=2e-3)
            else:
                steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            losses = []
            for iteration in range(150):
                steps.zero_grad()
                loss = models.backward(ddp, rank, iteration % 20)
                steps.step()
                losses.append(loss.item())
            state.close()
            falls[bits] = (sum(losses[:20]) / 20, sum(losses[-20:]) / 20)
        return falls

    for bits, (first, last) in run_ranks(rank_main)[0].items():
        assert last < (0.9 if bits > 1 / 16 else 1.0) * first, bits


def test_state_travels_at_a_width_below_one() -> None:
    def rank_main(rank: int):
        def run():
            model = models.small_model()
            state = mqgrad.CompressionState(Scripted([1 / 4, 1 / 16], interval=1))
            return models.compressed_ddp(model, state), state

        model, state = run()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state.mark()
        models.train(model, optimizer, state, rank, range(4))
        saved, weights = state.state_dict(), copy.deepcopy(model.state_dict())
        before = state.totals.bit_iterations
        straight = models.train(model, optimizer, state, rank, range(4, 8))
        state.close()
        model, state = run()
        model.load_state_dict(weights)
        state.load_state_dict(saved)
        loaded = state.bits, state.totals.bit_iterations
        resumed = models.train(model, torch.optim.SGD(model.parameters(), lr=0.1), state, rank, range(4, 8))
        state.close()
        return loaded, before, straight == resumed  # all parameters are in one bucket

    for (bits, bit_iterations), before, is_the_same in run_ranks(rank_main):
        assert bits in (1 / 4, 1 / 16)
        assert bit_iterations == before == 2 * (1 / 4 + 1 / 16)
        assert is_the_same


def test_noise_rises_as_the_width_falls() -> None:
    noises = [code_noise(bits, norm_sq=1.0, peak_energy=40.0, rotated=FEW_BITS) for bits in WIDTHS]
    assert noises == sorted(noises, reverse=True)
    statistics = make_interval()
    assert statistics.noise_of_mean(1 / 4) == pytest.approx(sparse_noise(1 / 4) * (1 + 4 * 0.5) / 4)


@pytest.mark.parametrize(
    ("compressor", "bits"),
    [
        *((Quantized(), bits) for bits in FEW_BITS),
        *((Rotated(unbiased=True), bits) for bits in ROTATED_WIDTHS),
    ],
)
def test_the_noise_of_few_bits_is_that_of_the_rotated_code(
    compressor: Quantized | Rotated, bits: int
) -> None:
    x, codec = torch.randn(2**16, generator=torch.Generator().manual_seed(0)), compressor.codec(bits)
    noise = code_noise(bits, norm_sq=1.0, peak_energy=40.0, rotated=compressor.coding(2).rotated)
    assert noise == ROTATED_GAMMA[bits]
    sent = codec.decode(codec.encode(x, seed=1), x.numel())
    assert float((sent - x).square().sum() / x.square().sum()) == pytest.approx(noise, rel=0.05)


@pytest.mark.parametrize("bits", SPARSE_WIDTHS)
def test_the_noise_law_holds_on_a_laplace_vector(bits: float) -> None:
    uniform = torch.rand(2**18, generator=torch.Generator().manual_seed(0)).double()
    x = -(2 * uniform - 1).sign() * torch.log1p(-(2 * uniform - 1).abs())
    sent = mqgrad.quantize(x, bits).dequantize()
    contracted = float((sent - x).square().sum() / x.square().sum())
    assert contracted == pytest.approx(1 - 1 / (1 + sparse_noise(bits)), rel=0.05)


def test_observations_have_room_for_narrow_widths() -> None:
    schema = ObservationSchema(widths=(1 / 64, 1 / 4, 1, 8))
    low, high = schema.bounds()
    assert low[-2] == pytest.approx(-6 / 5)
    assert ObservationSchema().bounds()[0][-2] == 0
    seen = Observer(schema).observe(make_interval(bits=1 / 64))
    assert seen[-2] == pytest.approx(-6 / 5)
    assert ((seen >= low) & (seen <= high)).all()
    assert ObservationSchema.from_json(schema.to_json()) == schema


def test_controllers_take_fractions_in_both_spellings() -> None:
    assert make_controller("fixed:1/4") == make_controller("fixed:0.25") == mqgrad.FixedBits(0.25)
    goodput = make_controller("goodput:widths=1/64+1/4+1+4+32,start=1/4")
    assert goodput.initial_bits == 1 / 4
    # Where the wire is all that takes time, few bits are chosen; where it takes none, all of them.
    bits: float = 4
    for _ in range(10):
        bits = goodput.decide(make_interval(step_seconds=2.5 * bits, bits=bits))
    assert bits < 1
    fast = make_interval(step_seconds=0.05, compute_seconds=0.05)
    assert make_controller("goodput:widths=1/64+1/4+1+4+32,start=4").decide(fast) == 32


def test_qsgd_has_no_width_below_one() -> None:
    with pytest.raises(ValueError, match=r"bit width 0\.25 is not supported"):
        check_width(0.25, mqgrad.QSGD().widths)
