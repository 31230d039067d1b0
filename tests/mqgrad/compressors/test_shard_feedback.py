"""What the owners of shards owe: kept once among all ranks, and lost in no regrouping of DDP's buckets."""

import models
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks

import mqgrad
from mqgrad.compressors.shard_feedback import _mark_moved

Pieces = dict[int, tuple[torch.Tensor, int, int, int]]


def _trained(rank: int, spec: str) -> tuple[torch.Tensor, torch.Tensor, list[int], Pieces]:
    """Sum of the means; what this rank has sent on its way there; elements by parameter; its pieces of the shards."""
    model, _, state = models.new_run(mqgrad.FixedBits(2), compressor=spec)
    alone = models.small_model()
    applied, own = torch.zeros(()), torch.zeros(())
    for iteration in range(4):
        for copy in (alone, model):
            copy.zero_grad()
            models.backward(copy, rank, iteration)
        own = own + models.gradient_of(alone)
        applied = applied + models.gradient_of(model)
    state.drain()
    saved = state._checkpoint.saved()["compressor"]
    by_key = {id(parameter): key for key, parameter in enumerate(state.parameters)}
    keys = [by_key[id(parameter)] for parameter in model.parameters()]
    sent = own - torch.cat([saved["push_feedback"][key] for key in keys])
    pieces = {place: saved["pull_feedback"][key] for place, key in enumerate(keys)}
    state.close()
    return applied, sent, [parameter.numel() for parameter in model.parameters()], pieces


def _joined(ranks: list[Pieces], numels: list[int]) -> torch.Tensor:
    """The vector that the ranks' pieces make up, each element from one of them."""
    vector, owners = torch.zeros(sum(numels)), torch.zeros(sum(numels))
    offset = 0
    for place, numel in enumerate(numels):
        for pieces in ranks:
            values, start, *_ = pieces[place]
            vector[offset + start : offset + start + len(values)] = values
            owners[offset + start : offset + start + len(values)] += 1
        offset += numel
    assert owners.eq(1).all()
    return vector


PLACES = st.tuples(st.integers(0, 40), st.integers(1, 20))


@given(st.integers(0, 60), PLACES, PLACES)
def test_what_has_moved_to_another_shard_is_known_by_element(
    numel: int, before: tuple[int, int], now: tuple[int, int]
) -> None:
    moved = torch.zeros(numel, dtype=torch.bool)
    _mark_moved(moved, before, now)
    owners = [[(offset + i) // shard for i in range(numel)] for offset, shard in (before, now)]
    assert moved.tolist() == [a != b for a, b in zip(*owners, strict=True)]


@pytest.mark.parametrize("topology", ["sharded", "star"])
def test_ranks_keep_what_shards_owe_once_and_lose_nothing_when_ddp_regroups(topology: str) -> None:
    """What was applied and what is owed are what the ranks have sent."""
    spec = f"quantized:topology={topology}"
    results = run_ranks(lambda rank: _trained(rank, spec), 3)
    numels = results[0][2]
    owed = _joined([pieces for *_, pieces in results], numels)
    sent = sum(sent for _, sent, *_ in results) / 3
    assert owed.norm() > 0.05 * sent.norm()
    for applied, *_ in results:
        torch.testing.assert_close(applied + owed, sent, rtol=1e-4, atol=1e-6)
