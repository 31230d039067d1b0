"""One connection to another rank: messages each way, a part at a time."""

import collections
import contextlib
import select
import socket
import struct
from typing import Protocol

_HEADER = struct.Struct("<QQ")
"""Number of the exchange, and bytes that follow."""
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""A connection that the other rank has closed is an error, not the end of a process that leaves SIGPIPE as it is."""


class Exchange(Protocol):
    """Messages between all ranks, of which so many have still to leave or to arrive."""

    num_pending: int


class _Message:
    """One that leaves or arrives in parts."""

    __slots__ = ("_exchange", "_left", "parts")

    def __init__(self, header: bytes | bytearray, body: memoryview, exchange: Exchange) -> None:
        self.parts = [memoryview(header), body]
        self._left = len(header) + len(body)
        self._exchange = exchange
        exchange.num_pending += 1

    def begins_within(self, nbytes: int) -> bool:
        """Whether its header ends in the next so many bytes."""
        return len(self.parts) == 2 and nbytes >= len(self.parts[0])

    def has_moved(self, nbytes: int) -> bool:
        """Take note that so many more bytes have; return whether that is all."""
        self._left -= nbytes
        if self._left == 0:
            self._exchange.num_pending -= 1
            return True
        if nbytes >= len(self.parts[0]):
            nbytes -= len(self.parts.pop(0))
        self.parts[0] = self.parts[0][nbytes:]
        return False


class Peer:
    """The connection to another rank, and what is to pass over it each way, in the order of exchanges."""

    def __init__(self, connection: socket.socket, global_rank: int) -> None:
        self.connection, self.global_rank = connection, global_rank
        self._outgoing: collections.deque[_Message] = collections.deque()
        self._incoming: collections.deque[tuple[_Message, bytes]] = collections.deque()
        self._header = bytearray(_HEADER.size)
        """Of what arrives first."""

    def close(self) -> None:
        """Have the other rank hear of it even where a forked process holds the connection, too."""
        with contextlib.suppress(OSError):  # the other rank has been first
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    @property
    def events(self) -> int:
        """What of :func:`select.poll` to wait for."""
        return (select.POLLIN if self._incoming else 0) | (select.POLLOUT if self._outgoing else 0)

    def add(self, number: int, message: memoryview, received: memoryview, exchange: Exchange) -> None:
        """Have a message sent and one received, but for empty ones."""
        if message:
            header = _HEADER.pack(number, len(message))
            self._outgoing.append(_Message(header, message, exchange))
        if received:
            expected = _HEADER.pack(number, len(received))
            self._incoming.append((_Message(self._header, received, exchange), expected))

    def send(self) -> None:
        """Hand over what the kernel takes at once."""
        while self._outgoing:
            message = self._outgoing[0]
            try:
                nbytes = self.connection.sendmsg(message.parts, (), _NO_SIGNAL)
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
            if message.begins_within(nbytes):
                self._check_header(expected)
            if message.has_moved(nbytes):
                self._incoming.popleft()

    def _check_header(self, expected: bytes) -> None:
        if self._header != expected:
            number, nbytes = _HEADER.unpack(self._header)
            own_number, own_nbytes = _HEADER.unpack(expected)
            raise ConnectionError(
                f"it is out of step: it has sent {nbytes} bytes as message {number}, where {own_nbytes} as message "
                f"{own_number} were expected"
            )
