"""Who is the parameter server: what goes where between a push and a pull.

Shape suffixes: W ranks, senders or shards of a bucket; O shards of this rank; P bytes of a shard's payload.
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

    def push(self, transport: Transport, payloads_WP: torch.Tensor) -> torch.Tensor:
        """Send every shard to its owner; return [W, O, P], what each rank sent; empty if O = 0."""
        ...

    def pull(self, transport: Transport, coded_OP: torch.Tensor) -> torch.Tensor:
        """Hand out the owned shards' means; return [W, P], all shards."""
        ...

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        """Replace a buffer [N] by its mean over ranks without coding it."""
        ...


class Sharded:
    """Every rank is the server of one shard: all links carry the same."""

    def owned(self, transport: Transport) -> range:
        return range(transport.rank, transport.rank + 1)

    def push(self, transport: Transport, payloads_WP: torch.Tensor) -> torch.Tensor:
        return transport.all_to_all(payloads_WP)[:, None]

    def pull(self, transport: Transport, coded_OP: torch.Tensor) -> torch.Tensor:
        return transport.all_gather(coded_OP[0])

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        buffer.div_(transport.world_size)
        transport.all_reduce_(buffer)


class Star:
    """MQGrad's own (Cui et al. 2018): rank 0 takes every push, answers every pull."""

    def owned(self, transport: Transport) -> range:
        return range(transport.world_size if transport.rank == 0 else 0)

    def push(self, transport: Transport, payloads_WP: torch.Tensor) -> torch.Tensor:
        received = transport.gather(payloads_WP.reshape(-1))
        return received.view(-1, *payloads_WP.shape)

    def pull(self, transport: Transport, coded_OP: torch.Tensor) -> torch.Tensor:
        shape = (transport.world_size, coded_OP.shape[1])
        mine = coded_OP if transport.rank == 0 else coded_OP.new_empty(shape)
        return transport.fan_out(mine.view(-1)).view(shape)

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


def stack_owned(coded: list[torch.Tensor], payloads_WP: torch.Tensor) -> torch.Tensor:
    """[O, P] of the owned shards' payloads, as long as those that were pushed."""
    return torch.stack(coded) if coded else payloads_WP[:0]
