"""All-to-alls and all-gathers on the CPU: one message from each rank to each other, over connections of our own.

Gloo's own messages cost more: a receiver first has to say that it is ready, which queues behind what it is sending
itself, and a thread of Gloo's wakes up for each part. Here the thread that sends and waits does all of it, and the
kernel carries on meanwhile:

1. To start an exchange is to hand its messages to the kernel, as far as that takes them at once.
2. To wait for one is to go on sending and receiving, of all exchanges that are under way, until it is done.

All ranks start their exchanges in the same order, in which a connection carries them. A message begins with the
number of its exchange and its length, so that ranks which are out of step find out at once.
"""

import collections
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist

from .connections import connect_all
from .named_work import described_rank, in_vain, waits_in
from .own_group import CONSTRUCTION, store_of
from .wire_meter import Work

_HEADER = struct.Struct("<QQ")
"""Number of the exchange, and bytes that follow."""


class PointToPoint:
    """Messages between all ranks of a group.

    Every wait is bounded by the group's timeout, in which something has to arrive or leave.

    Args:
        group: whose store the ranks find each other by, each constructing this at the same point.

    Raises:
        RuntimeError: another rank did not come, or cannot be reached; names the remedy.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._rank, world_size = group.rank(), group.size()
        self._seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        self._number = 0
        self._failure = ""
        ranks = dist.get_process_group_ranks(group)
        self._rank_text = described_rank(ranks, self._rank)
        try:
            connections = connect_all(_own_store(group), self._rank, ranks, self._seconds)
        except (OSError, RuntimeError) as error:
            failure = str(error)
        else:
            # No two ranks begin with the same receiver.
            order = [(self._rank + step) % world_size for step in range(1, world_size)]
            self._peers = {peer: _Peer(connections[peer], ranks[peer]) for peer in order}
            return
        raise in_vain(waits_in(ranks, self._rank, CONSTRUCTION), failure)

    def start_all_to_all(
        self, received: torch.Tensor, payloads: torch.Tensor, lengths: Sequence[int]
    ) -> Work:
        """Send the r-th of joined payloads, ``lengths[r]`` elements, to rank r; receive row r of ``received``
        [W, lengths[rank]] from rank r. Both stay as they are until the work has been waited for."""
        return self._start(payloads.split_with_sizes(list(lengths)), received.unbind())

    def start_all_gather(self, gathered: torch.Tensor, payload: torch.Tensor, lengths: Sequence[int]) -> Work:
        """Send a payload to everyone; receive ``lengths[r]`` elements from rank r, one behind the other."""
        return self._start([payload] * len(lengths), gathered.split_with_sizes(list(lengths)))

    def _start(self, messages: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> Work:
        self._check()
        received[self._rank].copy_(messages[self._rank])
        self._number += 1
        exchange = _Exchange(self)
        for rank, peer in self._peers.items():
            peer.add(self._number, messages[rank], received[rank], exchange)
        for peer in self._peers.values():
            self._attempt(peer, peer.send)
        return exchange

    def wait_for(self, exchange: "_Exchange") -> None:
        """Go on with all exchanges until this one is done.

        Raises:
            RuntimeError: a rank failed, is out of step or did not come in time: names it and the remedy.
        """
        while exchange.num_pending:
            self._check()
            self._move()

    def _move(self) -> None:
        """Wait until a connection is ready, and send and receive what is possible."""
        poller, waiting = select.poll(), {}
        for peer in self._peers.values():
            if peer.events:
                poller.register(peer.connection, peer.events)
                waiting[peer.connection.fileno()] = peer
        ready = poller.poll(1e3 * self._seconds)
        if not ready:
            ranks = " and ".join(f"rank {peer.global_rank}" for peer in waiting.values())
            self._fail(ranks, f"timed out after {self._seconds:g} s")
        for descriptor, events in ready:
            peer = waiting[descriptor]
            if events & select.POLLOUT:
                self._attempt(peer, peer.send)
            if events & ~select.POLLOUT:
                self._attempt(peer, peer.receive)

    def _attempt(self, peer: "_Peer", move: Callable[[], None]) -> None:
        try:
            move()
            return
        except OSError as error:
            failure = str(error)
        self._fail(f"rank {peer.global_rank}", failure)

    def _fail(self, ranks: str, failure: str) -> NoReturn:
        """Close all connections, so that the others hear of it: they could not go on without this rank."""
        self.close()
        self._failure = str(in_vain(f"{self._rank_text} waited in vain for {ranks}", failure))
        raise RuntimeError(self._failure)

    def _check(self) -> None:
        if self._failure:
            raise RuntimeError(self._failure)

    def close(self) -> None:
        """Close the connections; nothing may be started then, and nothing under way comes to an end."""
        for peer in self._peers.values():
            peer.connection.close()
        self._peers = {}
        self._failure = self._failure or f"{self._rank_text} has closed its connections"


class _Exchange:
    """Messages under way, of which so many have still to leave or to arrive."""

    __slots__ = ("_messages", "num_pending")

    def __init__(self, messages: PointToPoint) -> None:
        self._messages, self.num_pending = messages, 0

    def wait(self) -> None:
        self._messages.wait_for(self)


class _Message:
    """One that leaves or arrives in parts."""

    __slots__ = ("exchange", "parts")

    def __init__(self, header: bytes | bytearray, body: torch.Tensor, exchange: _Exchange) -> None:
        self.parts = [memoryview(header), body.view(torch.uint8).numpy().data]
        self.exchange = exchange
        exchange.num_pending += 1

    def has_moved(self, nbytes: int) -> bool:
        """Take note that so many more bytes have; return whether that is all."""
        while self.parts and nbytes >= len(self.parts[0]):
            nbytes -= len(self.parts.pop(0))
        if not self.parts:
            self.exchange.num_pending -= 1
            return True
        self.parts[0] = self.parts[0][nbytes:]
        return False


class _Peer:
    """The connection to another rank, and what is to pass over it each way, in the order of exchanges."""

    def __init__(self, connection: socket.socket, global_rank: int) -> None:
        self.connection, self.global_rank = connection, global_rank
        self._outgoing: collections.deque[_Message] = collections.deque()
        self._incoming: collections.deque[tuple[_Message, bytes]] = collections.deque()
        self._header = bytearray(_HEADER.size)
        """Of what arrives first."""

    @property
    def events(self) -> int:
        """What of :func:`select.poll` to wait for."""
        return (select.POLLIN if self._incoming else 0) | (select.POLLOUT if self._outgoing else 0)

    def add(self, number: int, message: torch.Tensor, received: torch.Tensor, exchange: _Exchange) -> None:
        """Have a message sent and one received, but for empty ones."""
        if message.numel():
            header = _HEADER.pack(number, message.nbytes)
            self._outgoing.append(_Message(header, message, exchange))
        if received.numel():
            expected = _HEADER.pack(number, received.nbytes)
            self._incoming.append((_Message(self._header, received, exchange), expected))

    def send(self) -> None:
        """Hand over what the kernel takes at once."""
        while self._outgoing:
            message = self._outgoing[0]
            try:
                nbytes = self.connection.sendmsg(message.parts)
            except BlockingIOError:
                return
            if message.has_moved(nbytes):
                self._outgoing.popleft()

    def receive(self) -> None:
        """Take what has come.

        Raises:
            OSError: the other rank has closed the connection, or this is not what it should have sent now.
        """
        while self._incoming:
            message, expected = self._incoming[0]
            try:
                nbytes = self.connection.recvmsg_into(message.parts)[0]
            except BlockingIOError:
                return
            if nbytes == 0:
                raise ConnectionError("it has closed its connection")
            is_complete = message.has_moved(nbytes)
            if len(message.parts) < 2:
                self._check_header(expected)
            if is_complete:
                self._incoming.popleft()

    def _check_header(self, expected: bytes) -> None:
        if self._header != expected:
            number, nbytes = _HEADER.unpack(self._header)
            own_number, own_nbytes = _HEADER.unpack(expected)
            raise ConnectionError(
                f"it is out of step: it has sent {nbytes} bytes as message {number}, where {own_nbytes} as message "
                f"{own_number} were expected"
            )


def _own_store(group: dist.ProcessGroup) -> dist.Store:
    """In which this construction's keys are new: all ranks count theirs alike."""
    store = store_of(group)
    return dist.PrefixStore(f"connections {store.add(f'constructions of {group.rank()}', 1)}", store)
