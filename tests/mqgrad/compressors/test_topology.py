"""One server against a shard of it on every rank: the same means, other bytes on other links."""

import averages
import pytest
from ranks import run_ranks

import mqgrad
from mqgrad.cuda_ext import CHECKSUM_BYTES


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_star_gives_the_same_bytes_as_shards_do(world_size: int) -> None:
    """Scale buckets, columns and random numbers belong to the parameters, not to who sums them."""
    cases = [
        ("quantized:topology={}", 2),
        ("qsgd:topology={}", 3),
        ("quantized:topology={},rounding=stochastic", 4),
        ("minmax:min_numel=4000,topology={}", 2),
    ]

    def rank_main(rank: int):
        return [
            [
                [got.tobytes() for got, _ in averages.means(spec.format(name), bits, rank, iterations=4)[0]]
                for name in ("sharded", "star")
            ]
            for spec, bits in cases[: None if world_size == 2 else -1]
        ]

    for by_case in run_ranks(rank_main, world_size):
        for sharded, star in by_case:
            # minmax averages the other parameters in fp32, where more than two ranks are summed in another order
            assert sharded == star


def test_the_star_averages_fp64_in_fp64() -> None:
    def rank_main(rank: int):
        model = averages.models.small_model().double()
        x = averages.torch.randn(2, 64, generator=averages.torch.Generator().manual_seed(rank)).double()
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor="quantized:topology=star")
        ddp = averages.models.compressed_ddp(model, state)
        ddp(x).sum().backward()
        state.close()
        return averages.torch.cat([p.grad.flatten() for p in model.parameters()]).numpy(), x.numpy()

    results = run_ranks(rank_main)
    model = averages.models.small_model().double()
    for _, x in results:
        model(averages.torch.from_numpy(x)).sum().backward()
    exact = averages.torch.cat([p.grad.flatten() for p in model.parameters()]) / 2
    for mean, _ in results:
        averages.torch.testing.assert_close(averages.torch.from_numpy(mean), exact, rtol=1e-13, atol=1e-15)


class Recorder:
    """A link that takes no time and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def seconds(self, wire_bytes: int) -> float:
        if wire_bytes:  # else it is the latency that is asked for
            self.asked.append(wire_bytes)
        return 0.0


@pytest.mark.parametrize("bits", [4, 32])
def test_the_servers_link_carries_every_push_and_every_pull(bits: int) -> None:
    def rank_main(rank: int):
        model = averages.models.nn.Linear(512, 64, bias=False)
        link = Recorder()
        state = mqgrad.CompressionState(
            mqgrad.FixedBits(bits), compressor="quantized:topology=star", link=link
        )
        ddp = averages.models.compressed_ddp(model, state)
        ddp(averages.torch.randn(2, 512)).sum().backward()
        state.close()
        return state.totals.wire_bytes - 3 * averages.AGREEMENT_BYTES, link.asked[1:]

    n = 512 * 64
    model_bytes = 4 * n if bits == 32 else n * bits // 8 + 4 * n // 512 + 4 * CHECKSUM_BYTES
    results = run_ranks(rank_main, world_size=4)
    assert [sent for sent, _ in results] == [3 * model_bytes] + [model_bytes] * 3
    for _, asked in results:
        assert asked == [3 * model_bytes, 3 * model_bytes]
