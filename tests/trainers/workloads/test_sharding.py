"""Ranks' examples are disjoint, repeat for a seed, and are as unequally distributed as they are asked to be."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mqgrad.trainers import make_workload
from mqgrad.trainers.workloads.digits import load_digits
from mqgrad.trainers.workloads.sharding import (
    _log_dirichlet,
    batch_indices,
    dirichlet_partition,
    shuffled_indices,
)

TEN_CLASSES = torch.arange(10).repeat(400)


def skew(alpha: float, seed: int) -> float:
    """Total variation distance between the class frequencies of a rank and of all the data, mean of four ranks."""
    partition = dirichlet_partition(TEN_CLASSES, alpha=alpha, world_size=4, seed=seed)
    frequencies = torch.stack(
        [torch.bincount(TEN_CLASSES[row], minlength=10) / len(row) for row in partition]
    )
    return float((frequencies - 0.1).abs().sum(dim=1).mean() / 2)


def test_ranks_never_share_an_example_within_an_epoch() -> None:
    batches_per_epoch = 103 // 3 // 5
    for epochs in (1, 2):
        seen = []
        for rank in range(3):
            order = shuffled_indices(103, batch_size=5, rank=rank, world_size=3, seed=1)
            skip = (epochs - 1) * batches_per_epoch
            seen += torch.cat(list(itertools.islice(order, skip, skip + batches_per_epoch))).tolist()
        assert len(seen) == len(set(seen)) == 3 * batches_per_epoch * 5


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_too_large_a_batch_is_refused_with_its_numbers(alpha: float | None) -> None:
    with pytest.raises(
        ValueError, match=r"batch_size 64 on 2 ranks needs 128 examples, there are 100: lower"
    ):
        batch_indices(torch.zeros(100), batch_size=64, rank=0, world_size=2, seed=0, dirichlet_alpha=alpha)


def test_without_alpha_every_rank_takes_its_share_of_one_permutation() -> None:
    order = batch_indices(TEN_CLASSES, batch_size=7, rank=1, world_size=3, seed=5)
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):  # epochs
        expected = torch.randperm(4000, generator=generator)[1::3][: 1333 // 7 * 7]
        assert torch.equal(torch.cat(list(itertools.islice(order, 1333 // 7))), expected)


@given(
    labels=st.lists(st.sampled_from([-1, 0, 3, 10**12]), min_size=1, max_size=60),
    alpha=st.floats(1e-300, 1e300) | st.floats(1e-3, 1e3) | st.integers(1, 10**30),
    world_size=st.integers(1, 5),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_partition_is_disjoint_nearly_complete_and_the_same_for_a_seed(
    labels: list[int], alpha: float, world_size: int, seed: int
) -> None:
    partition, again = (
        dirichlet_partition(torch.tensor(labels), alpha=alpha, world_size=world_size, seed=seed)
        for _ in range(2)
    )
    assert torch.equal(partition, again)
    assert partition.dtype == torch.int64
    assert partition.shape == (world_size, len(labels) // world_size)
    dealt = partition.flatten().tolist()
    assert len(set(dealt)) == len(dealt)
    assert set(dealt) <= set(range(len(labels)))


def test_ranks_differ_the_more_the_smaller_alpha_is() -> None:
    mean = {alpha: np.mean([skew(alpha, seed) for seed in range(3)]) for alpha in (1e-9, 10, 1e6)}
    assert mean[1e-9] > 0.5  # 0.75 if no two of four ranks had a class in common
    assert 0.1 < mean[10] < 0.4
    assert mean[1e6] < 0.05  # 0.03 by chance


def test_class_frequencies_are_dirichlet() -> None:
    alpha, p = 1.5, np.array([0.5, 0.3, 0.2])
    draws = np.exp(_log_dirichlet(alpha * p, 20_000, np.random.default_rng(0)))
    q = draws / draws.sum(axis=1, keepdims=True)
    assert q.mean(axis=0) == pytest.approx(p, abs=0.01)
    assert q.var(axis=0) == pytest.approx(p * (1 - p) / (alpha + 1), rel=0.05)


@pytest.mark.parametrize("alpha", [1e-3, 1e-9])
def test_a_small_alpha_takes_one_class_and_does_not_underflow(alpha: float) -> None:
    p = np.array([0.5, 0.3, 0.2])
    log_q = _log_dirichlet(alpha * p, 20_000, np.random.default_rng(0))
    assert np.isfinite(log_q).all()
    assert np.bincount(log_q.argmax(axis=1)) / 20_000 == pytest.approx(p, abs=0.015)
    first, second = np.sort(log_q, axis=1)[:, :-3:-1].T
    assert np.mean(first - second > np.log(1000)) > 0.95


def test_a_rank_goes_through_its_own_examples_in_every_epoch() -> None:
    partition = dirichlet_partition(TEN_CLASSES, alpha=0.1, world_size=4, seed=3)
    order = batch_indices(TEN_CLASSES, batch_size=100, rank=2, world_size=4, seed=3, dirichlet_alpha=0.1)
    first, second = (torch.cat(list(itertools.islice(order, 10))) for _ in range(2))
    own = partition[2].sort().values
    assert torch.equal(first.sort().values, own)
    assert torch.equal(second.sort().values, own)
    assert not torch.equal(first, second)
    assert not torch.equal(partition, dirichlet_partition(TEN_CLASSES, alpha=0.1, world_size=4, seed=4))


def test_digits_by_rank_and_not_by_default() -> None:
    labels = load_digits().train[1]
    skewed = make_workload("digits-mlp", batch_size=359, dirichlet_alpha=0.1)
    equal = make_workload("digits-mlp", batch_size=359)
    for rank, row in enumerate(dirichlet_partition(labels, alpha=0.1, world_size=4, seed=1)):
        assert torch.equal(next(skewed.batches(rank, 4, 1))[1].sort().values, labels[row].sort().values)
        default = next(shuffled_indices(len(labels), batch_size=359, rank=rank, world_size=4, seed=1))
        assert torch.equal(next(equal.batches(rank, 4, 1))[1], labels[default])


@pytest.mark.parametrize("alpha", [0, -0.1, float("inf"), float("nan"), True, "0.1"])
def test_a_wrong_alpha_is_named_with_the_remedy(alpha: object) -> None:
    message = f"dirichlet_alpha must be a finite number above 0, not {alpha!r}; leave it out"
    with pytest.raises(ValueError, match=message):
        make_workload("digits-cnn", dirichlet_alpha=alpha)
