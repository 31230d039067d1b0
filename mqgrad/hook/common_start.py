"""Tensors that all ranks are to begin with alike, and are made so."""

import hashlib
from collections.abc import Sequence

import torch

from ..collectives.transport import Transport
from ..tensors import bytes_of

_DIGEST_BYTES = 8


def digest(x: torch.Tensor) -> bytes:
    """Of a tensor's bytes."""
    return hashlib.blake2b(bytes_of(x), digest_size=_DIGEST_BYTES).digest()


@torch.no_grad()
def make_equal(tensors: Sequence[torch.Tensor], transport: Transport) -> None:
    """Overwrite by rank 0's what any rank has otherwise, of tensors of the same shapes and dtypes on all ranks.

    1. Ranks exchange a digest of each.
    2. Rank 0 broadcasts those whose digests differ, which all ranks see alike.
    """
    own = torch.frombuffer(bytearray(b"".join(map(digest, tensors))), dtype=torch.uint8)
    rows = transport.all_gather(own.to(transport.device)).cpu().view(-1, len(tensors), _DIGEST_BYTES)
    differs = (rows != rows[0]).any(dim=2).any(dim=0).tolist()
    for tensor, differing in zip(tensors, differs, strict=True):
        if differing:
            sent = tensor.contiguous().view(-1)  # whatever strides it has on each rank
            transport.broadcast_(sent)
            tensor.copy_(sent.view_as(tensor))
