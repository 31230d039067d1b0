"""fp16 against PyTorch's own hook, and no communication at all."""

import averages
import torch
from ranks import run_ranks
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import mqgrad


def test_fp16_gives_the_bytes_of_pytorchs_hook() -> None:
    def rank_main(rank: int):
        results, state = averages.means("fp16", 16, rank)
        model = averages.models.small_model()
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(None, fp16_compress_hook)
        averages.models.backward(ddp, rank, 0)
        theirs = averages.models.gradient_of(model)
        assert results[0][0].tobytes() == theirs.numpy().tobytes()
        return state.totals.wire_bytes, theirs.numel()

    for wire_bytes, numel in run_ranks(rank_main):
        assert wire_bytes == 2 * numel + averages.AGREEMENT_BYTES


def test_fp16_overflows_to_infinity_as_pytorch_does() -> None:
    def rank_main(rank: int):
        model = torch.nn.Linear(2, 1, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(16), compressor="fp16")
        ddp = averages.models.compressed_ddp(model, state)
        ddp(torch.tensor([[7e4, 4.0]])).sum().backward()
        state.close()
        return model.weight.grad.tolist()

    assert run_ranks(rank_main) == [[[float("inf"), 4.0]]] * 2


def test_none_leaves_every_rank_its_own_gradient_and_sends_nothing() -> None:
    def rank_main(rank: int):
        results, state = averages.means("none", 32, rank)
        own = averages.models.small_model()
        averages.models.backward(own, rank, 0)
        assert results[0][0].tobytes() == averages.models.gradient_of(own).numpy().tobytes()
        return state.totals.wire_bytes

    assert run_ranks(rank_main) == [averages.AGREEMENT_BYTES] * 2
