"""What several rooms look at in a tensor."""

import torch

_SAMPLE = 256
"""Elements, at least, where there are as many."""


def evenly_spaced(x: torch.Tensor) -> torch.Tensor:
    """A sample of a tensor of any shape, as a view of 256 to 511 of its elements, or of all if it has fewer."""
    flat = x.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]


def bytes_of(x: torch.Tensor) -> bytes:
    """Those of its elements in their order, whatever its strides and device."""
    return x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
