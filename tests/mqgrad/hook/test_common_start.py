"""Tensors that ranks are to begin with alike: those that differ become rank 0's, and others cost a digest."""

import torch
import torch.distributed as dist
from ranks import run_ranks

from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.hook.common_start import make_equal

WORLD_SIZE = 3
DIGEST_BYTES = 8


def test_what_any_rank_has_otherwise_becomes_rank_0s() -> None:
    def rank_main(rank: int) -> float:
        of_rank_0 = [
            torch.arange(6.0).view(2, 3).t(),
            torch.ones(5),
            torch.tensor(float("nan")),
            torch.ones(4),
        ]
        tensors = [tensor.clone() for tensor in of_rank_0]
        if rank == 1:
            tensors[0] = tensors[0].add(1).contiguous()  # other values, with other strides
        if rank == 2:
            tensors[3][2] = -1.0
        transport = ProcessGroupTransport(dist.group.WORLD)
        make_equal(tensors, transport)
        for tensor, expected in zip(tensors, of_rank_0, strict=True):
            assert torch.equal(tensor.nan_to_num(), expected.nan_to_num())
        return transport.wire_bytes

    digests = DIGEST_BYTES * 4 * (WORLD_SIZE - 1)
    assert run_ranks(rank_main, WORLD_SIZE) == [digests + 4 * (6 + 4), digests, digests]
