"""Codes that arrive changed, or are of another iteration: an error that names the rank they came from."""

import dataclasses

import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.compressors import segments

SENDER = 2
# Topology and way, to the rank where a message arrives changed, the collective that brings it, and who sent it.
WAYS = {
    ("sharded", "push"): (1, "start_all_to_all", SENDER),
    ("sharded", "pull"): (1, "start_joined_all_gather", SENDER),
    ("all-gather", "push"): (1, "start_joined_all_gather", SENDER),
    ("star", "push"): (0, "start_gather", SENDER),
    ("star", "pull"): (1, "start_fan_out", 0),
}


def corrupt(state: mqgrad.CompressionState, collective: str) -> None:
    """Flip a bit of the first scale that rank 2 sends to this rank from now on; of a star's means, of the last shard.

    Of sparse codes and of rotated ones, of the header.
    """
    transport = state._transport
    original = getattr(transport, collective)

    def flip(received: torch.Tensor) -> torch.Tensor:
        rows = received.view(transport.world_size, -1)
        rows[SENDER, 2] ^= 16
        return received

    setattr(transport, collective, lambda *arguments: original(*arguments).then(flip))


def errors_of(way: tuple[str, str], bits: float) -> list[str]:
    """What each of three ranks says of an iteration in which a message of one chunk of several arrives changed."""
    victim, collective, _ = WAYS[way]

    def rank_main(rank: int) -> str:
        segments.CHUNK_BYTES = 256
        state = mqgrad.CompressionState(
            mqgrad.FixedBits(bits), compressor=f"quantized:topology={way[0]}", timeout_seconds=30
        )
        ddp = models.compressed_ddp(torch.nn.Linear(64, 96), state)
        for iteration in range(5):
            if iteration == 4 and rank == victim:
                corrupt(state, collective)
            try:
                ddp(torch.randn(2, 64)).sum().backward()
            except RuntimeError as error:
                return str(error)
            finally:
                state.drain()
            state.step(0.0)
        state.close()
        return "no error"

    return run_ranks(rank_main, 3)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("bits", [1 / 4, 1, 4])
def test_a_changed_bit_is_an_error_that_names_where_it_came_from(bits: float, way: tuple[str, str]) -> None:
    victim, _, sender = WAYS[way]
    errors = errors_of(way, bits)
    assert f"what rank {victim} received of rank {sender} has a wrong checksum" in errors[victim]
    assert "not of iteration 4 and a round of 1" in errors[victim]
    others = [errors[rank] for rank in range(3) if rank != victim]
    if way in (("sharded", "push"), ("star", "push")):  # the victim goes on, and tells them with the mean
        told = f"rank {victim} has received a payload with a wrong checksum; it told rank"
        assert all(told in error for error in others)
    else:
        assert others == ["no error", "no error"]


@pytest.mark.parametrize("bits", [4, 16])
def test_codes_of_another_iteration_are_refused_between_checks(bits: int) -> None:
    """Ranks compare iterations only where an interval ends; each payload's checksum depends on them, too."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(bits, interval=50))
        models.train(model, optimizer, state, rank, range(5))
        saved = state.state_dict()
        state.totals.iterations += rank
        with pytest.raises(RuntimeError, match=rf"wrong checksum.* iteration {5 + rank} "):
            models.train(model, optimizer, state, rank, range(1))
        for call in (state.state_dict, lambda: state.load_state_dict(saved)):
            with pytest.raises(RuntimeError, match="communication stopped after an earlier failure"):
                call()
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
    codec = dataclasses.replace(q.codec, bits=bits)
    assert q.wire_bytes == codec.payload_bytes(numel)
    with pytest.raises(ValueError, match=f"that of {numel} elements at {bits} bits"):
        dataclasses.replace(q, codec=codec, bits=bits, shape=torch.Size([numel])).dequantize()
