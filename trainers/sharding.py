"""Which examples each rank sees."""

from collections.abc import Iterator

import torch


def shuffled_indices(
    num_examples: int, *, batch_size: int, rank: int, world_size: int, seed: int
) -> Iterator[torch.Tensor]:
    """Endless batches of example indices, int64 [batch_size].

    Every epoch is one permutation of the data, the same on all ranks, of which each rank takes every
    ``world_size``-th element: within an epoch no two ranks see the same example. What does not fill a batch on
    every rank is left out until the next epoch.

    Raises:
        ValueError: the data does not fill one batch per rank.
    """
    per_rank = num_examples // world_size
    if per_rank < batch_size:
        raise ValueError(
            f"batch_size {batch_size} on {world_size} ranks needs {batch_size * world_size} examples, "
            f"there are {num_examples}: lower batch_size or the number of workers"
        )
    return _endless_epochs(num_examples, batch_size, rank, world_size, seed)


def _endless_epochs(
    num_examples: int, batch_size: int, rank: int, world_size: int, seed: int
) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    num_batches = num_examples // world_size // batch_size
    while True:
        shard = torch.randperm(num_examples, generator=generator)[rank::world_size]
        yield from shard[: num_batches * batch_size].split(batch_size)
