"""TCP connections of our own between all ranks of a group, on the network that Gloo takes.

1. Every rank listens, and publishes its address and a random token in the group's store.
2. It connects to each rank before it, and shows that one's token.
3. It accepts a connection of each rank behind it. Whoever shows something else is a stranger, and is sent away.
"""

import contextlib
import hmac
import ipaddress
import os
import pathlib
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch.distributed as dist

_TOKEN_BYTES = 16
_GREETING = struct.Struct(f"<{_TOKEN_BYTES}sQ")
"""The token of whoever is greeted, and the own rank in the group."""
_GREETING_SECONDS = 5.0
"""Longest silence of whoever has connected: a rank sends its greeting at once."""
_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux, netdevice(7)."""


def connect_all(
    store: dist.Store, rank: int, global_ranks: Sequence[int], seconds: float
) -> dict[int, socket.socket]:
    """Connect to all other ranks, each of which calls this at the same point.

    Args:
        store: of these ranks, with none of our keys in it.
        rank: in the group.
        global_ranks: of the group's ranks, as the job counts them: for errors.
        seconds: longest that this rank waits for another one.

    Returns:
        by rank in the group, sockets that do not block.

    Raises:
        OSError, RuntimeError: another rank did not come in time, or cannot be reached.
    """
    connections: dict[int, socket.socket] = {}
    behind = set(range(rank + 1, len(global_ranks)))
    token = secrets.token_bytes(_TOKEN_BYTES)
    try:
        with _listener(len(global_ranks)) as listener:
            host, port = listener.getsockname()[:2]
            store.set(_key(rank), f"{token.hex()} {port} {host}")
            for peer in range(rank):
                store.wait([_key(peer)], timedelta(seconds=seconds))
                connections[peer] = _connected(
                    store.get(_key(peer)).decode(), rank, global_ranks[peer], seconds
                )
            deadline = time.monotonic() + seconds
            while missing := behind - set(connections):
                listener.settimeout(max(deadline - time.monotonic(), 1e-3))
                connections.update(
                    _accepted(listener, token, missing, [global_ranks[r] for r in sorted(missing)])
                )
    except BaseException:
        for connection in connections.values():
            connection.close()
        raise
    for connection in connections.values():
        connection.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # the end of a message waits for nothing
        connection.setblocking(False)
    return connections


def _key(rank: int) -> str:
    return f"address of {rank}"


def _connected(address: str, rank: int, global_peer: int, seconds: float) -> socket.socket:
    """A connection to the rank that has published this, after greeting it."""
    token, port, host = address.split(" ", 2)
    try:
        connection = socket.create_connection((host, int(port)), seconds)
        connection.sendall(_GREETING.pack(bytes.fromhex(token), rank))
    except OSError as error:
        raise OSError(f"cannot connect to rank {global_peer} at {host}, port {port}: {error}") from error
    return connection


def _accepted(
    listener: socket.socket, token: bytes, missing: set[int], global_missing: list[int]
) -> dict[int, socket.socket]:
    """The next one who connects, by rank; nothing where that is a stranger."""
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        raise TimeoutError(f"no connection of ranks {', '.join(map(str, global_missing))}") from None
    with contextlib.suppress(OSError):
        connection.settimeout(_GREETING_SECONDS)
        shown, rank = _GREETING.unpack(_read(connection, _GREETING.size))
        if hmac.compare_digest(shown, token) and rank in missing:
            return {rank: connection}
    connection.close()
    return {}


def _read(connection: socket.socket, nbytes: int) -> bytes:
    """As many bytes and no more: what follows is a message."""
    read = b""
    while len(read) < nbytes:
        part = connection.recv(nbytes - len(read))
        if not part:
            raise ConnectionError("closed before it was greeted")
        read += part
    return read


def _listener(backlog: int) -> socket.socket:
    """On an address of this host by which others may reach it."""
    for host in _own_addresses():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with contextlib.suppress(OSError):  # it may be another host's
            return socket.create_server((host, 0), family=family, backlog=backlog)
    return socket.create_server(("127.0.0.1", 0), backlog=backlog)


def _own_addresses() -> Iterator[str]:
    """In the order of Gloo: of the interface that GLOO_SOCKET_IFNAME names, or else of the host's name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        yield from _addresses_of(interface)
    with contextlib.suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            yield str(address[0])


def _addresses_of(interface: str) -> Iterator[str]:
    """On Linux, which has these calls and files."""
    with (
        contextlib.suppress(OSError, ImportError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket,
    ):
        import fcntl

        answer = fcntl.ioctl(any_socket, _GET_ADDRESS, struct.pack("40s", os.fsencode(interface)[:15]))
        yield socket.inet_ntoa(answer[20:24])
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
            address, _, _, scope, _, name = line.split()
            if name == interface and scope != "20":  # of the link alone
                yield str(ipaddress.IPv6Address(bytes.fromhex(address)))
