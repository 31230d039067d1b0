"""Who is the parameter server: what goes where between a push and a pull.

A bucket has as many shards as there are ranks; their payloads may differ in length, the same on every rank.
"""

from typing import Literal, Protocol

import torch

from ..transport import Transport

TopologyName = Literal["sharded", "star"]


class Topology(Protocol):
    """Carries coded shards to their owners, and coded means back to everyone."""

    def owned(self, transport: Transport) -> range:
        """Shards that this rank averages."""
        ...

    def push(self, transport: Transport, payloads: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """Send every shard to its owner; return for each owned shard what each rank sent."""
        ...

    def pull(
        self, transport: Transport, coded: list[torch.Tensor], like: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Hand out the owned shards' means; return those of all shards, as long as the payloads ``like``."""
        ...

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        """Replace a buffer [N] by its mean over ranks without coding it."""
        ...


class Sharded:
    """Every rank is the server of one shard: all links carry the same."""

    def owned(self, transport: Transport) -> range:
        return range(transport.rank, transport.rank + 1)

    def push(self, transport: Transport, payloads: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        return [transport.all_to_all(torch.cat(payloads), _lengths(payloads)).unbind()]

    def pull(
        self, transport: Transport, coded: list[torch.Tensor], like: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        return transport.all_gather_uneven(coded[0], _lengths(like))

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        buffer.div_(transport.world_size)
        transport.all_reduce_(buffer)


class Star:
    """MQGrad's own (Cui et al. 2018): rank 0 takes every push, answers every pull."""

    def owned(self, transport: Transport) -> range:
        return range(transport.world_size if transport.rank == 0 else 0)

    def push(self, transport: Transport, payloads: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        received = transport.gather(torch.cat(payloads))
        shards = received.split(_lengths(payloads), dim=1)
        return [shards[r].unbind() for r in self.owned(transport)]

    def pull(
        self, transport: Transport, coded: list[torch.Tensor], like: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        lengths = _lengths(like)
        mine = torch.cat(coded) if coded else like[0].new_empty(sum(lengths))
        return transport.fan_out(mine).split(lengths)

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        gathered = transport.gather(buffer)
        mean = gathered.float().mean(0).to(buffer.dtype) if transport.rank == 0 else buffer
        buffer.copy_(transport.fan_out(mean))


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
