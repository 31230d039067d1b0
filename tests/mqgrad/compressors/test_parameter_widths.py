"""A width per parameter: what is sent, counted, agreed on and saved."""

import copy

import averages
import models
import pytest
import torch
from ranks import run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.cuda_ext import CHECKSUM_BYTES

NUM_PARAMETERS = 8  # of models.small_model: four layers, weight and bias
MIXED = [1, 8, 2, 32, 4, 16, 3, 5]
OTHER = [32, 2, 2, 2, 8, 8, 1, 32]


def mixed(*decisions: object) -> Scripted:
    """Begins at 4 bits for all, and decides by parameter."""
    return Scripted(decisions, first=4, wants_parameters=True)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("topology", ["sharded", "star"])
def test_every_rank_ends_with_the_same_bytes_near_the_exact_mean(world_size: int, topology: str) -> None:
    """Each parameter errs as much as its own width lets it: 32 bits not at all."""

    def rank_main(rank: int):
        compressor = f"quantized:error_feedback=false,topology={topology}"
        ddp, optimizer, state = models.new_run(None, compressor=compressor)
        exact_model = copy.deepcopy(ddp.module)
        models.train(ddp, optimizer, state, rank, range(1))
        exact_model.load_state_dict(ddp.module.state_dict())
        # Weights at 32 bits, biases at 8.
        state.set_width([32 if parameter.ndim == 2 else 8 for parameter in state.parameters])
        optimizer.zero_grad()
        models.backward(ddp, rank, 1)
        exact = [0.0] * NUM_PARAMETERS
        for other in range(world_size):
            exact_model.zero_grad()
            models.backward(exact_model, other, 1)
            exact = [e + p.grad / world_size for e, p in zip(exact, exact_model.parameters(), strict=True)]
        state.close()
        errors = [
            ((p.grad - e).norm() / e.norm()).item()
            for p, e in zip(ddp.module.parameters(), exact, strict=True)
        ]
        return models.gradient_of(ddp.module).numpy().tobytes(), errors, state.bits

    results = run_ranks(rank_main, world_size)
    assert len({got for got, _, _ in results}) == 1
    weights, biases = results[0][1][::2], results[0][1][1::2]
    assert max(weights) < 1e-6
    assert all(1e-5 < error < 0.02 for error in biases)
    num_weights, num_biases = 3 * 4096 + 256, 3 * 64 + 4
    mean_bits = (32 * num_weights + 8 * num_biases) / (num_weights + num_biases)
    assert results[0][2] == pytest.approx(mean_bits)


def test_feedback_repays_what_a_narrow_width_left_out() -> None:
    """After 32 bits for all, what was applied is the sum of the exact means."""

    def rank_main(rank: int):
        model = torch.nn.Sequential(torch.nn.Linear(700, 3), torch.nn.Linear(3, 2, bias=False))
        state = mqgrad.CompressionState(None)
        ddp = models.compressed_ddp(model, state)
        applied, exact = 0.0, 0.0
        for iteration, bits in enumerate(
            [4, [1, 2, 3], [32, 8, 1], [2, 32, 32], [32, 32, 16], [32, 1, 32], 32]
        ):
            state.set_width(bits)
            xs = [
                torch.randn(5, 700, generator=torch.Generator().manual_seed(9 * iteration + r))
                for r in range(2)
            ]
            model.zero_grad()
            ddp(xs[rank]).sum().backward()
            applied = applied + models.gradient_of(model)
            for x in xs:
                model.zero_grad()
                model(x).sum().backward()
                exact = exact + models.gradient_of(model) / 2
        state.close()
        return (applied - exact).abs().max().item()

    assert max(run_ranks(rank_main)) < 1e-4


def test_bytes_are_counted_as_sent_and_bits_by_element() -> None:
    def rank_main(rank: int):
        model = torch.nn.Sequential(
            torch.nn.Linear(512, 3, bias=False), torch.nn.Tanh(), torch.nn.Linear(3, 512, bias=False)
        )
        state = mqgrad.CompressionState(None)
        ddp = models.compressed_ddp(model, state)
        ddp(torch.randn(2, 512)).sum().backward()
        before = copy.copy(state.totals)
        state.set_width([2, 8])
        ddp(torch.randn(2, 512)).sum().backward()
        state.close()
        return state.totals.since(before).wire_bytes, state.totals.bit_iterations - before.bit_iterations

    results = run_ranks(rank_main)
    # Six scale buckets, three at 2 bits, three at 8; each has a scale of 4 bytes. Two bits are rotated, with a seed
    # of 8 bytes. Every rank sends all of them, with a checksum.
    low, high = 8 + 3 * (512 * 2 // 8 + 4), 3 * (512 * 8 // 8 + 4)
    assert [sent for sent, _ in results] == [low + high + CHECKSUM_BYTES + averages.AGREEMENT_BYTES] * 2
    assert [bits for _, bits in results] == [5, 5]


def test_statistics_by_parameter_are_those_of_all_ranks() -> None:
    def rank_main(rank: int):
        controller = mixed(4)
        model, optimizer, state = models.new_run(controller)
        state.mark()
        models.train(model, optimizer, state, rank, range(1))
        exact_model = copy.deepcopy(model.module)
        models.train(model, optimizer, state, rank, range(1, 2))
        models.backward(exact_model.requires_grad_(), rank, 1)
        models.train(model, optimizer, state, rank, range(2, 3))
        state.close()
        exact_model.zero_grad()
        models.backward(exact_model, rank, 1)
        figures = []
        names = {id(p): name for name, p in model.module.named_parameters()}
        for name in [names[id(p)] for p in state.parameters]:
            parameter = exact_model.get_parameter(name)
            flat = parameter.grad.flatten()
            chunks = flat.split(512)
            peak = sum(len(chunk) * chunk.abs().max().item() ** 2 for chunk in chunks)
            figures.append((flat.numel(), flat.square().sum().item(), peak))
        return controller.seen[0].parameters, figures, controller.seen[0].peak_energy

    (seen, first, _), (other, second, _) = run_ranks(rank_main)
    assert seen == other
    assert len(seen) == NUM_PARAMETERS
    for found, one, two in zip(seen, first, second, strict=True):
        assert found.numel == one[0]
        assert found.norm_sq == pytest.approx((one[1] + two[1]) / 2, rel=1e-4)
        assert found.peak_energy == pytest.approx((one[2] + two[2]) / 4, rel=1e-4)


def test_nobody_who_did_not_ask_gets_parameters() -> None:
    def rank_main(rank: int):
        controller = Scripted([4])
        model, optimizer, state = models.new_run(controller)
        state.mark()
        models.train(model, optimizer, state, rank, range(3))
        state.close()
        return controller.seen[0].parameters

    assert run_ranks(rank_main) == [(), ()]


def test_rank_zero_decides_even_if_the_others_want_one_width() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mixed(MIXED if rank == 0 else 8))
        state.mark()
        models.train(model, optimizer, state, rank, range(3))
        state.close()
        return state.parameter_bits

    assert run_ranks(rank_main) == [tuple(MIXED)] * 2


def test_ranks_with_different_widths_are_detected_before_anything_is_sent() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(None)
        models.train(model, optimizer, state, rank, range(1))
        state.set_width(MIXED if rank == 0 else OTHER)
        digest = "by parameter, digest [0-9a-f]{12}"
        with pytest.raises(RuntimeError, match=rf"bit width \(rank 0: {digest}, rank 1: {digest}\)"):
            models.train(model, optimizer, state, rank, range(1))
        state.close()

    run_ranks(rank_main)


def test_a_wrong_decision_names_what_is_wrong() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mixed([2, 3]))
        state.mark()
        with pytest.raises(RuntimeError, match="2 bit widths for 8 parameters"):
            models.train(model, optimizer, state, rank, range(3))
        state.close()

    run_ranks(rank_main, world_size=1)
