"""A model whose forward changes its parameters, on each rank others: it is trained all the same, and as by DDP."""

import models
import pytest
import torch
from limited_table import LimitedTable, step
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

import mqgrad

ITERATIONS = 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_forward_scales_are_of_the_same_model(dtype: torch.dtype) -> None:
    def rank_main(rank: int) -> None:
        state = mqgrad.CompressionState(mqgrad.FixedBits(32))
        ddp = models.compressed_ddp(LimitedTable().to(dtype), state)
        plain = DistributedDataParallel(LimitedTable().to(dtype))
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ddp, plain)]
        for iteration in range(ITERATIONS):
            state.step(step(ddp, optimizers[0], rank, iteration))
            step(plain, optimizers[1], rank, iteration)
        state.close()
        assert torch.equal(models.parameters_of(ddp), models.parameters_of(plain))

    run_ranks(rank_main)
