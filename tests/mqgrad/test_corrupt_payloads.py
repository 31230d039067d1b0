"""Codes that arrive changed, or are of another iteration: an error that names the rank they came from."""

import dataclasses

import models
import pytest
import torch
from ranks import run_ranks

import mqgrad

WAYS = {"push": "start_all_to_all", "pull": "start_all_gather_uneven"}


def corrupt(state: mqgrad.CompressionState, collective: str) -> None:
    """Flip a bit in the middle of what rank 0 sends to this rank from now on."""
    transport = state._transport
    original = getattr(transport, collective)

    def flip(received: torch.Tensor) -> torch.Tensor:
        received.view(-1)[received.numel() // 4] ^= 16
        return received

    setattr(transport, collective, lambda *args: original(*args).then(flip))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [1 / 4, 1, 4, 16])
def test_a_changed_bit_is_an_error_that_names_where_it_came_from(bits: float, way: str) -> None:
    def rank_main(rank: int) -> str:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(bits))
        models.train(model, optimizer, state, rank, range(4))
        if rank == 1:
            corrupt(state, WAYS[way])
        try:
            models.train(model, optimizer, state, rank, range(4, 5))
        except RuntimeError as error:
            return str(error)
        finally:
            state.close()
        return "no error"

    errors = run_ranks(rank_main)
    assert "what rank 1 received of rank 0 has a wrong checksum" in errors[1]
    assert "not of iteration 4 and a round of 1" in errors[1]
    assert "look at the memory and the network" in errors[1]


def test_codes_of_another_iteration_are_refused_between_checks() -> None:
    """Ranks compare iterations only where an interval ends; each payload's checksum depends on them, too."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=50))
        models.train(model, optimizer, state, rank, range(5))
        state.totals.iterations += rank
        with pytest.raises(RuntimeError, match=rf"wrong checksum.* iteration {5 + rank} "):
            models.train(model, optimizer, state, rank, range(1))
        state.close()

    run_ranks(rank_main)


def test_a_rank_that_ends_its_round_alone_is_found_out() -> None:
    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=50), period=5)
        models.train(model, optimizer, state, rank, range(22 if rank == 0 else 24))
        go_on = state.finish_round if rank == 0 else lambda: models.train(model, optimizer, state, rank, [24])
        with pytest.raises(
            RuntimeError, match=rf"wrong checksum.* iteration 20 and a round of {2 + 3 * rank}"
        ):
            go_on()
        state.close()

    run_ranks(rank_main)


@pytest.mark.parametrize("bits", mqgrad.WIDTHS)
@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_changed_payload_is_not_dequantized(bits: float, at: int) -> None:
    q = mqgrad.quantize(torch.randn(40, 50), bits)
    q.payload[at] ^= 1  # below 16 bits the first four bytes are a scale, or a header
    with pytest.raises(
        ValueError, match=rf"payload of {q.wire_bytes} bytes .* 2000 elements at .*its checksum"
    ):
        q.dequantize()


@pytest.mark.parametrize(("bits", "numel"), [(2, 4030), (4, 2047)])
def test_a_payload_is_not_taken_for_another_of_its_length(bits: int, numel: int) -> None:
    q = mqgrad.quantize(torch.randn(2048), 4)
    assert q.wire_bytes == q.codec.payload_bytes(numel, bits)
    with pytest.raises(ValueError, match=f"that of {numel} elements at {bits} bits"):
        dataclasses.replace(q, bits=bits, shape=torch.Size([numel])).dequantize()
