"""Who is the parameter server: what goes where between a push and a pull.

A bucket has as many shards as there are ranks; their payloads may differ in length, the same on every rank.
"""

from typing import Literal, Protocol, get_args

import torch

from ..checks import check_choice
from ..collectives.transport import Transport
from ..collectives.wire_meter import Pending

TopologyName = Literal["sharded", "star"]
CodedTopologyName = Literal["auto", "measured", "all-gather", "sharded", "star"]
"""Of a coded mean, which may also be taken by every rank: see :class:`.Gathered`."""
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

    def start_push(
        self, transport: Transport, payloads: torch.Tensor, lengths: list[int], round_trip: int | None = None
    ) -> Pending[Received]:
        """Send every shard to its owner.

        Args:
            payloads: of all shards, joined; they stay as they are until what is received has been waited for.
            lengths: of the payloads, in bytes, by shard.
            round_trip: see :meth:`.Transport.start_all_to_all`.
        """
        ...

    def start_pull(
        self, transport: Transport, means: torch.Tensor, lengths: list[int]
    ) -> Pending[torch.Tensor]:
        """Hand out the owned shards' means, joined; return the means of all shards, joined."""
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

    def start_push(
        self, transport: Transport, payloads: torch.Tensor, lengths: list[int], round_trip: int | None = None
    ) -> Pending[Received]:
        return transport.start_all_to_all(payloads, lengths, round_trip).then(lambda received: [received])

    def start_pull(
        self, transport: Transport, means: torch.Tensor, lengths: list[int]
    ) -> Pending[torch.Tensor]:
        return transport.start_joined_all_gather(means, lengths)

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        transport.average_(buffer)


class Star:
    """MQGrad's own (Cui et al. 2018): rank 0 takes every push, answers every pull."""

    def owned(self, transport: Transport) -> range:
        return range(transport.world_size if transport.rank == 0 else 0)

    def owner(self, shard: int) -> int:
        return 0

    def start_push(
        self, transport: Transport, payloads: torch.Tensor, lengths: list[int], round_trip: int | None = None
    ) -> Pending[Received]:
        num_owned = len(self.owned(transport))
        received = transport.start_gather(payloads)
        return received.then(lambda rows: list(rows.split(lengths, dim=1))[:num_owned])

    def start_pull(
        self, transport: Transport, means: torch.Tensor, lengths: list[int]
    ) -> Pending[torch.Tensor]:
        # The server's length, to receive as much.
        return transport.start_fan_out(means if len(means) else means.new_empty(sum(lengths)))

    def average_plain_(self, transport: Transport, buffer: torch.Tensor) -> None:
        gathered = transport.start_gather(buffer).wait()
        precise = torch.promote_types(buffer.dtype, torch.float32)
        mean = gathered.to(precise).mean(0).to(buffer.dtype) if transport.rank == 0 else buffer
        buffer.copy_(transport.start_fan_out(mean).wait())


_TOPOLOGIES: dict[str, type[Topology]] = {"sharded": Sharded, "star": Star}


def make_topology(name: TopologyName) -> Topology:
    """The topology of a name.

    Raises:
        ValueError: listing the known names.
    """
    check_choice("topology", name, get_args(TopologyName))
    return _TOPOLOGIES[name]()


def gathers(name: CodedTopologyName, world_size: int) -> bool:
    """Whether every rank takes the mean of everything: where it is asked for, and with two ranks by default."""
    return name == "all-gather" or (name == "auto" and world_size == 2)


def join(payloads: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Payloads one after another, uint8; a single one as it is."""
    if len(payloads) == 1:
        return payloads[0]
    return torch.cat([torch.empty(0, dtype=torch.uint8, device=device), *payloads])
