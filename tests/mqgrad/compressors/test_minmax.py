"""MQGrad's own code: whose columns are coded, and with which statistics."""

import averages
import pytest
import torch
from ranks import run_ranks
from torch import nn

import mqgrad
from mqgrad import cuda_ext


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("bits", [1, 3])
def test_it_is_the_authors_quantizer_on_the_whole_matrix(world_size: int, bits: int) -> None:
    """Sharding must not show: per-column statistics of TensorFlow's [inputs, outputs], which is torch's transpose."""

    def rank_main(rank: int):
        weight = nn.Linear(40, 30, bias=False)  # 30 columns: the last of 4 shards is padded
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits), compressor="minmax:min_numel=1199")
        ddp = averages.models.compressed_ddp(weight, state)
        gradients = [
            torch.randn(30, 40, generator=torch.Generator().manual_seed(r)) for r in range(world_size)
        ]
        (ddp(torch.eye(40)) * gradients[rank].T).sum().backward()  # whose gradient is gradients[rank]
        state.close()

        def coded(matrix: torch.Tensor) -> torch.Tensor:
            return cuda_ext.decode_minmax(cuda_ext.encode_minmax(matrix, bits), *matrix.shape, bits)

        pushed = torch.stack([coded(gradient.T) for gradient in gradients])
        torch.testing.assert_close(weight.weight.grad, coded(pushed.mean(0)).T)

    run_ranks(rank_main, world_size)


def test_only_large_matrices_are_coded_and_bytes_are_those_sent() -> None:
    def rank_main(rank: int):
        model = nn.Sequential(
            nn.Linear(64, 65), nn.Linear(65, 64), nn.Linear(64, 4)
        )  # 4160, 4160 and 256 weights
        results, state = averages.means("minmax:min_numel=4159", 2, rank, model=model)
        got, exact = (torch.from_numpy(x) for x in results[0])
        same = [
            bool(torch.allclose(a, b)) for a, b in zip(*(x.split(SIZES) for x in (got, exact)), strict=True)
        ]
        return same, state.totals.wire_bytes

    SIZES = [64 * 65, 65, 65 * 64, 64, 256, 4]
    same, wire_bytes = run_ranks(rank_main)[0]
    assert same == [False, True, False, True, True, True]
    # One all-reduce of what is plain; then a push and a pull of 33 of 65 (padded) and 32 of 64 columns.
    payload = (8 * 33 + 33 * 64 * 2 // 8) + (8 * 32 + 32 * 65 * 2 // 8)
    assert wire_bytes == averages.AGREEMENT_BYTES + 4 * (65 + 64 + 256 + 4) + 2 * payload


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_overflow_reaches_every_rank(bad: float) -> None:
    def rank_main(rank: int):
        model = nn.Linear(20, 6, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), compressor="minmax:min_numel=0")
        ddp = averages.models.compressed_ddp(model, state)
        scale = torch.ones(6)
        if rank == 1:
            scale[3] = bad
        (ddp(torch.randn(2, 20)) * scale).sum().backward()
        state.close()
        return model.weight.grad.isfinite().all(1).tolist()

    assert run_ranks(rank_main) == [[True, True, True, False, True, True]] * 2
