"""Who is the parameter server: what goes where between a push and a pull.

A bucket has as many shards as there are ranks; their payloads may differ in length, the same on every rank.
"""

from typing import Literal, Protocol

import torch

from ..transport import Transport
from ..wire_meter import Pending

TopologyName = Literal["sharded", "star"]
Received = list[tuple[torch.Tensor, ...]]
"""For each shard that a rank owns, what each rank sent."""


class Topology(Protocol):
    """Carries coded shards to their owners, and coded means back to everyone; several may be under way."""

    def owned(self, transport: Transport) -> range:
        """Shards that this rank averages."""
        ...

    def push(self, transport: Transport, payloads: list[torch.Tensor]) -> Pending[Received]:
        """Send every shard to its owner."""
        ...

    def pull(
        self, transport: Transport, coded: list[torch.Tensor], like: list[torch.Tensor]
    ) -> Pending[tuple[torch.Tensor, ...]]:
        """Hand out the owned shards' means; return those of all shards, as long as the payloads ``like``."""
        ...

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        """Replace a buffer [N] by its mean over ranks without coding it."""
        ...


class Sharded:
    """Every rank is the server of one shard: all links carry the same."""

    def owned(self, transport: Transport) -> range:
        return range(transport.rank, transport.rank + 1)

    def push(self, transport: Transport, payloads: list[torch.Tensor]) -> Pending[Received]:
        received = transport.start_all_to_all(torch.cat(payloads), _lengths(payloads))
        return received.then(lambda rows: [rows.unbind()])

    def pull(
        self, transport: Transport, coded: list[torch.Tensor], like: list[torch.Tensor]
    ) -> Pending[tuple[torch.Tensor, ...]]:
        return transport.start_all_gather_uneven(coded[0], _lengths(like))

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        buffer.div_(transport.world_size)
        transport.all_reduce_(buffer)


class Star:
    """MQGrad's own (Cui et al. 2018): rank 0 takes every push, answers every pull."""

    def owned(self, transport: Transport) -> range:
        return range(transport.world_size if transport.rank == 0 else 0)

    def push(self, transport: Transport, payloads: list[torch.Tensor]) -> Pending[Received]:
        lengths, owned = _lengths(payloads), self.owned(transport)

        def by_shard(received: torch.Tensor) -> Received:
            return [shard.unbind() for shard in received.split(lengths, dim=1)[: len(owned)]]

        return transport.start_gather(torch.cat(payloads)).then(by_shard)

    def pull(
        self, transport: Transport, coded: list[torch.Tensor], like: list[torch.Tensor]
    ) -> Pending[tuple[torch.Tensor, ...]]:
        lengths = _lengths(like)
        mine = torch.cat(coded) if coded else like[0].new_empty(sum(lengths))
        return transport.start_fan_out(mine).then(lambda means: means.split(lengths))

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


def _lengths(payloads: list[torch.Tensor]) -> list[int]:
    return [payload.numel() for payload in payloads]
