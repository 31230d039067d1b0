"""Who is the parameter server: what goes where between a push and a pull.

A bucket has as many shards as there are ranks; their payloads may differ in length, the same on every rank.
"""

from typing import Literal, Protocol

import torch

from ..transport import Transport
from ..wire_meter import Pending

TopologyName = Literal["sharded", "star"]
Received = list[torch.Tensor]
"""For each shard that a rank owns, [W, P] with row r the payload [P] of rank r."""


class Topology(Protocol):
    """Carries coded shards to their owners, and coded means back to everyone; several may be under way."""

    def owned(self, transport: Transport) -> range:
        """Shards that this rank averages."""
        ...

    def owner(self, shard: int) -> int:
        """Rank that averages a shard."""
        ...

    def push(self, transport: Transport, payloads: torch.Tensor, lengths: list[int]) -> Pending[Received]:
        """Send every shard to its owner: the r-th of the joined payloads has ``lengths[r]`` bytes.

        The payloads must stay as they are until what is received has been waited for.
        """
        ...

    def pull(self, transport: Transport, coded: torch.Tensor, lengths: list[int]) -> Pending[torch.Tensor]:
        """Hand out the owned shards' means, joined; return those of all shards, ``lengths[r]`` bytes each, joined."""
        ...

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        """Replace a buffer [N] by its mean over ranks without coding it."""
        ...


class Sharded:
    """Every rank is the server of one shard: all links carry the same."""

    def owned(self, transport: Transport) -> range:
        return range(transport.rank, transport.rank + 1)

    def owner(self, shard: int) -> int:
        return shard

    def push(self, transport: Transport, payloads: torch.Tensor, lengths: list[int]) -> Pending[Received]:
        return transport.start_all_to_all(payloads, lengths).then(lambda received: [received])

    def pull(self, transport: Transport, coded: torch.Tensor, lengths: list[int]) -> Pending[torch.Tensor]:
        return transport.start_all_gather_uneven(coded, lengths)

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        buffer.div_(transport.world_size)
        transport.all_reduce_(buffer)


class Star:
    """MQGrad's own (Cui et al. 2018): rank 0 takes every push, answers every pull."""

    def owned(self, transport: Transport) -> range:
        return range(transport.world_size if transport.rank == 0 else 0)

    def owner(self, shard: int) -> int:
        return 0

    def push(self, transport: Transport, payloads: torch.Tensor, lengths: list[int]) -> Pending[Received]:
        num_owned = len(self.owned(transport))
        received = transport.start_gather(payloads)
        return received.then(lambda rows: list(rows.split(lengths, dim=1))[:num_owned])

    def pull(self, transport: Transport, coded: torch.Tensor, lengths: list[int]) -> Pending[torch.Tensor]:
        # The server's length, to receive as much.
        return transport.start_fan_out(coded if len(coded) else coded.new_empty(sum(lengths)))

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        gathered = transport.start_gather(buffer).wait()
        mean = gathered.float().mean(0).to(buffer.dtype) if transport.rank == 0 else buffer
        buffer.copy_(transport.start_fan_out(mean).wait())


_TOPOLOGIES: dict[str, type[Topology]] = {"sharded": Sharded, "star": Star}


def make_topology(name: str) -> Topology:
    """The topology of a name.

    Raises:
        ValueError: listing the known names.
    """
    if name not in _TOPOLOGIES:
        raise ValueError(f"topology {name!r} is unknown; choose one of {', '.join(_TOPOLOGIES)}")
    return _TOPOLOGIES[name]()


def join(payloads: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Payloads one after another, uint8; a single one as it is."""
    if len(payloads) == 1:
        return payloads[0]
    return torch.cat([torch.empty(0, dtype=torch.uint8, device=device), *payloads])
