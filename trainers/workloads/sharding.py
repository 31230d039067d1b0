"""Which examples each rank sees."""

from collections.abc import Iterator

import numpy as np
import torch

from mqgrad.checks import check_positive

_SMALLEST_CONCENTRATION = 1e-12  # of a class; smaller ones change nothing but overflow in the end


def check_dirichlet_alpha(alpha: object) -> None:
    """Raise ValueError, naming the value, unless it is None or a finite number above 0."""
    if alpha is None:
        return
    try:
        check_positive(dirichlet_alpha=alpha)
    except ValueError as error:
        raise ValueError(f"{error}; leave it out for data that is distributed equally") from None


def batch_indices(
    labels: torch.Tensor,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    seed: int,
    dirichlet_alpha: float | None = None,
) -> Iterator[torch.Tensor]:
    """Endless batches of indices of examples with these labels, int64 [batch_size].

    Without ``dirichlet_alpha`` they are :func:`shuffled_indices`. With it, a rank has the examples of its row of
    :func:`dirichlet_partition` for the whole run, in a new order in every epoch. Every batch has ``batch_size``
    examples, so that the mean over ranks weighs them equally, whatever classes they have.

    Raises:
        ValueError: the data does not fill one batch per rank.
    """
    if dirichlet_alpha is None:
        return shuffled_indices(
            len(labels), batch_size=batch_size, rank=rank, world_size=world_size, seed=seed
        )
    _check_one_batch_per_rank(len(labels), batch_size, world_size)
    mine = dirichlet_partition(labels, alpha=dirichlet_alpha, world_size=world_size, seed=seed)[rank]
    order = shuffled_indices(
        len(mine), batch_size=batch_size, rank=0, world_size=1, seed=seed * world_size + rank
    )
    return (mine[i] for i in order)


def dirichlet_partition(labels: torch.Tensor, *, alpha: float, world_size: int, seed: int) -> torch.Tensor:
    """Deal N examples to W ranks so that each has class frequencies of its own: int64 [W, N // W], no index twice.

    1. Each rank draws its frequencies q ~ Dir(alpha·p), where p are the frequencies of the classes in ``labels``.
    2. Ranks take turns. Each draws a class from its q, without the classes that are used up, and takes one of the
       class's examples at random.

    All ranks get equally many examples, and N mod W are left out. With alpha towards 0 a rank takes one class until
    it is used up, then another; with a large alpha ranks differ by chance only. The concentrations of all classes
    add up to alpha: where others write Dir(alpha) with alpha for each of C classes, theirs is C times as much.

    Source: Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution for federated visual
    classification". Turns are ours: of ranks served one after another, the last would get what the others leave.
    """
    rng = np.random.default_rng(seed)
    _, classes, counts = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    order = rng.permutation(len(labels))
    unused = [order[classes[order] == c].tolist() for c in range(len(counts))]
    log_q = _log_dirichlet(float(alpha) * (counts / len(labels)), world_size, rng)
    parts: list[list[int]] = [[] for _ in range(world_size)]
    for _ in range(len(labels) // world_size):
        noise = rng.gumbel(size=log_q.shape)  # the Gumbel-max trick: argmax(log q + noise) is a draw from q
        for rank, part in enumerate(parts):
            drawn = int((log_q[rank] + noise[rank]).argmax())
            part.append(unused[drawn].pop())
            if not unused[drawn]:
                log_q[:, drawn] = -np.inf
    return torch.tensor(parts, dtype=torch.int64)


def _log_dirichlet(concentration: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of ``count`` draws, float64 [count, C], each row up to a constant.

    A draw is gamma variates G_a, normalised. Of small a they underflow to 0; log G_a = log G_(a+1) + (log U)/a with
    U uniform does not (Marsaglia and Tsang 2000).
    """
    a = np.maximum(concentration, _SMALLEST_CONCENTRATION)
    size = (count, len(a))
    return np.log(rng.standard_gamma(a + 1, size)) - rng.exponential(size=size) / a


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
    _check_one_batch_per_rank(num_examples, batch_size, world_size)
    return _endless_epochs(num_examples, batch_size, rank, world_size, seed)


def _check_one_batch_per_rank(num_examples: int, batch_size: int, world_size: int) -> None:
    if num_examples // world_size < batch_size:
        raise ValueError(
            f"batch_size {batch_size} on {world_size} ranks needs {batch_size * world_size} examples, "
            f"there are {num_examples}: lower batch_size or the number of workers"
        )


def _endless_epochs(
    num_examples: int, batch_size: int, rank: int, world_size: int, seed: int
) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    num_batches = num_examples // world_size // batch_size
    while True:
        shard = torch.randperm(num_examples, generator=generator)[rank::world_size]
        yield from shard[: num_batches * batch_size].split(batch_size)
