"""What a compressor must do whatever its code: runs of the hook that tests of all compressors share."""

import copy
import io
from collections.abc import Callable
from typing import Any

import models
import torch
import torch.distributed as dist
from torch import nn

import mqgrad

AGREEMENT_BYTES = 8 * 8  # sent before the gradients of each of the first iterations


def means(
    compressor: str | mqgrad.Compressor,
    bits: int,
    rank: int,
    *,
    iterations: int = 1,
    model: nn.Module | None = None,
    **ddp_args: Any,
) -> tuple[list[tuple[Any, Any]], mqgrad.CompressionState]:
    """The averaged and the exact mean gradient of each iteration, the parameters left alone; and the closed state."""
    model = model or models.small_model()
    exact_model = copy.deepcopy(model)
    state = mqgrad.CompressionState(mqgrad.FixedBits(bits), compressor=compressor)
    ddp = models.compressed_ddp(model, state, **ddp_args)
    results = []
    for iteration in range(iterations):
        model.zero_grad()
        state.step(models.backward(ddp, rank, iteration))
        exact = []
        for other in range(dist.get_world_size()):
            exact_model.zero_grad()
            models.backward(exact_model, other, iteration)
            exact.append(models.gradient_of(exact_model))
        results.append((models.gradient_of(model).numpy(), torch.stack(exact).mean(0).numpy()))
    state.close()
    return results, state


def straight_and_resumed(
    start: Callable[[], models.Run], rank: int, before: int = 3, after: int = 4
) -> tuple[list[bytes], list[bytes]]:
    """Gradients after a checkpoint, in the run that goes on and in a fresh one that loads it.

    ``start`` begins a run, as :func:`models.new_run` does: its buckets are small, and DDP regroups them after the
    first iteration of each of the two.
    """
    model, optimizer, state = start()
    state.mark()
    models.train(model, optimizer, state, rank, range(before))
    file = io.BytesIO()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "mqgrad": state.state_dict()}
    torch.save(saved, file)
    bits = state.bits
    straight = models.train(model, optimizer, state, rank, range(before, before + after))
    state.close()
    file.seek(0)
    saved = torch.load(file)  # weights_only: tensors and plain types
    model, optimizer, state = start()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    state.load_state_dict(saved["mqgrad"])
    assert state.bits == bits
    resumed = models.train(model, optimizer, state, rank, range(before, before + after))
    state.close()
    return straight, resumed
