"""Codes do not go by the script's default dtype."""

import models
import numpy as np
import pytest
import torch
from averages import means
from ranks import run_ranks

import mqgrad
from mqgrad.compressors import compressor_names, make_compressor
from mqgrad.widths import Width

DEFAULTS = [torch.float64, torch.bfloat16]


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("name", [each for each in compressor_names() if each != "smoothness"])
def test_compressors(name: str, default: torch.dtype) -> None:
    bits = make_compressor(name).widths[0]

    def rank_main(rank: int, dtype: torch.dtype) -> np.ndarray:
        model = models.small_model()
        torch.set_default_dtype(dtype)
        results, _ = means(name, bits, rank, iterations=2, model=model)
        return np.concatenate([got for got, _ in results])

    plain = run_ranks(lambda rank: rank_main(rank, torch.float32))
    for got, expected in zip(run_ranks(lambda rank: rank_main(rank, default)), plain, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("controller", ["l-greco", "gravac"])
def test_trials_of_a_gradient(controller: str) -> None:
    def rank_main(rank: int, dtype: torch.dtype) -> tuple[Width, tuple[Width, ...] | None]:
        model = models.small_model()
        torch.set_default_dtype(dtype)
        state = mqgrad.CompressionState(mqgrad.make_controller(f"{controller}:interval=3"))
        ddp = models.compressed_ddp(model, state)
        models.train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), state, rank, range(8))
        state.close()
        return state.bits, state.parameter_bits

    plain = run_ranks(lambda rank: rank_main(rank, torch.float32))
    assert run_ranks(lambda rank: rank_main(rank, torch.float64)) == plain
