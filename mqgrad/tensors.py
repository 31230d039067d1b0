"""A sample of a tensor, its bytes, and a least size of its elements."""

import torch

_SAMPLE = 256
"""Elements, at least, where there are as many."""


def evenly_spaced(x: torch.Tensor) -> torch.Tensor:
    """256 to 511 elements of a tensor of any shape, or all if it has fewer; a view, where it is contiguous."""
    return x.detach().reshape(-1)[:: _step(x)]


def num_evenly_spaced(x: torch.Tensor) -> int:
    """How many those are."""
    return -(-x.numel() // _step(x))


def _step(x: torch.Tensor) -> int:
    return max(1, x.numel() // _SAMPLE)


def raise_small_(x: torch.Tensor, share: float) -> None:
    """Raise the elements of a tensor, none of them negative, to ``share`` of their mean at least, alike on all ranks.

    How a sum is rounded depends on the number of threads, or the GPU. So it is taken in fp64 and rounded to 8 bits.
    """
    x.clamp_(min=(share * x.mean(dtype=torch.float64)).bfloat16().to(x.dtype))


def bytes_of(x: torch.Tensor) -> bytes:
    """Those of its elements in their order, whatever its strides and device."""
    return x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
