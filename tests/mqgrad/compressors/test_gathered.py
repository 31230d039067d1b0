"""Means that every rank takes of all codes: the same bytes on every rank, and no code's error but the ranks' own."""

import itertools

import averages
import models
import pytest
import torch
from ranks import run_cases, run_ranks

import mqgrad
from mqgrad.compressors import segments
from mqgrad.cuda_ext import CHECKSUM_BYTES

ALL_GATHER = "quantized:topology=all-gather"


BITS_AND_CHUNK_BYTES = list(itertools.product([1 / 4, 1, 4, 8, 16], [segments.CHUNK_BYTES, 256]))


@pytest.fixture(scope="module", params=[2, 3], ids="world_size={}".format)
def applied_and_sent(request: pytest.FixtureRequest) -> dict[tuple, tuple]:
    """The sums of what a rank applied and of what it sent, by width and size of chunks, then by rank.

    What it has sent by an iteration is the sum of its gradients less the residual, at α = 1.
    """

    def rank_main(rank: int, bits: float, chunk_bytes: int) -> tuple[bytes, torch.Tensor]:
        segments.CHUNK_BYTES = chunk_bytes
        spec = ALL_GATHER + ",feedback_gain=1"
        model = torch.nn.Linear(100, 70, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits), compressor=spec)
        ddp = models.compressed_ddp(model, state)
        applied, own = torch.zeros(7000), torch.zeros(7000)
        for iteration in range(4):
            model.zero_grad()
            x = torch.randn(100, generator=torch.Generator().manual_seed(10 * iteration + rank))
            ddp(x).sum().backward()
            own += x.repeat(70)
            applied += model.weight.grad.flatten()
        saved = state._checkpoint.saved()["compressor"]
        state.close()
        assert saved["pull_feedback"] == {}
        return applied.numpy().tobytes(), own - saved["push_feedback"][0]

    return run_cases(rank_main, BITS_AND_CHUNK_BYTES, request.param)


@pytest.mark.parametrize(("bits", "chunk_bytes"), BITS_AND_CHUNK_BYTES)
def test_all_ranks_hold_the_mean_of_what_each_has_sent(
    applied_and_sent: dict[tuple, tuple], bits: float, chunk_bytes: int
) -> None:
    results = applied_and_sent[bits, chunk_bytes]
    assert len({applied for applied, _ in results}) == 1
    applied = torch.frombuffer(bytearray(results[0][0]), dtype=torch.float32)
    sent = sum(sent for _, sent in results) / len(results)
    torch.testing.assert_close(applied, sent, rtol=1e-4, atol=1e-4)


def test_the_error_is_a_fraction_of_that_of_means_coded_again() -> None:
    """Half of it with four ranks whose gradients are independent, a fifth if they are the same."""

    def rank_main(rank: int) -> list[float]:
        errors = []
        for topology in ("all-gather", "sharded"):
            spec = f"quantized:topology={topology},error_feedback=false"
            means, _ = averages.means(spec, 2, rank, iterations=3)
            errors.append(sum(float((got - exact).norm()) ** 2 for got, exact in map(_flat, means)))
        return errors

    for gathered, sharded in run_ranks(rank_main, 4):
        assert 1.8 < sharded / gathered < 5.5


def _flat(pair: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(pair[0]).flatten(), torch.as_tensor(pair[1]).flatten()


@pytest.mark.parametrize(("world_size", "messages"), [(2, 1), (3, 2 * 2 / 3)])
def test_two_ranks_gather_by_default_and_more_have_shards(world_size: int, messages: float) -> None:
    def rank_main(rank: int) -> float:
        model = torch.nn.Linear(512, 60, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(4))
        ddp = models.compressed_ddp(model, state)
        ddp(torch.randn(2, 512)).sum().backward()
        state.close()
        return state.totals.wire_bytes - (world_size - 1) * averages.AGREEMENT_BYTES

    coded = 60 * (512 * 4 // 8 + 4)
    checksums = CHECKSUM_BYTES if world_size == 2 else 4 * CHECKSUM_BYTES
    assert run_ranks(rank_main, world_size) == [messages * coded + checksums] * world_size
