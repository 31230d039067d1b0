"""TCP connections of our own between all ranks of a group, on the network that Gloo takes.

1. Every rank listens, and publishes its address and a random token in the group's store.
2. It connects to each rank before it, and shows that one's token.
3. It accepts a connection of each rank behind it, and welcomes that one. Whoever shows something else is a stranger,
   and is sent away.
4. It waits until it has been welcomed by all ranks before it.

A rank that fails tells why in the store, so that the others do not wait for the timeout, and know which one it was.
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

import torch.distributed as dist

_TOKEN_BYTES = 16
_GREETING = struct.Struct(f"<{_TOKEN_BYTES}sQ")
"""The token of whoever is greeted, and the own rank in the group."""
_WELCOME = b"!"
_GREETING_SECONDS = 5.0
"""Longest that a greeting takes: a rank sends its own at once."""
_FAILURE = "failure"
"""Key of what a rank has failed by."""
_LOOK_SECONDS = 0.05
"""So often who waits looks for that."""
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
        OSError: another rank did not come in time, has failed, or cannot be reached.
    """
    connections: dict[int, socket.socket] = {}
    if len(global_ranks) == 1:
        return connections
    try:
        with contextlib.ExitStack() as opened, _telling_failure(store, global_ranks[rank]):
            listener = opened.enter_context(_listener(len(global_ranks)))
            _connect(connections, listener, store, rank, global_ranks, seconds)
    except BaseException:
        for connection in connections.values():
            connection.close()
        raise
    for connection in connections.values():
        # The end of a message does not wait for what follows.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    return connections


def _connect(
    connections: dict[int, socket.socket],
    listener: socket.socket,
    store: dist.Store,
    rank: int,
    global_ranks: Sequence[int],
    seconds: float,
) -> None:
    """The steps at the top of this file; a connection is added as soon as there is one."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    host, port = listener.getsockname()[:2]
    store.set(_key(rank), f"{token.hex()} {port} {host}")
    for peer in range(rank):
        address = _published(store, peer, global_ranks[peer], seconds)
        connections[peer] = _connected(address, rank, global_ranks[peer], seconds)
    deadline, behind = time.monotonic() + seconds, set(range(rank + 1, len(global_ranks)))
    while missing := behind - set(connections):
        if time.monotonic() > deadline:
            ranks = ", ".join(str(global_ranks[peer]) for peer in sorted(missing))
            raise TimeoutError(f"no connection of ranks {ranks}")
        connections.update(_accepted(listener, token, missing, deadline))
        _raise_failure(store)
    listener.close()
    for peer in range(rank):
        _be_welcomed(connections[peer], global_ranks[peer], seconds)


def _key(rank: int) -> str:
    return f"address of {rank}"


def _published(store: dist.Store, peer: int, global_peer: int, seconds: float) -> str:
    """The address and token of a rank."""
    deadline = time.monotonic() + seconds
    while not store.check([_key(peer)]):
        _raise_failure(store)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no address of rank {global_peer}")
        time.sleep(_LOOK_SECONDS)
    return store.get(_key(peer)).decode()


@contextlib.contextmanager
def _telling_failure(store: dist.Store, global_rank: int) -> Iterator[None]:
    """Tell the others what this rank fails by, before sockets are closed, by which they would fail, too.

    Raises:
        ConnectionError: another rank was first, which is why this one has failed.
    """
    try:
        yield
    except BaseException as error:
        own = f"rank {global_rank} could not connect: {str(error) or type(error).__name__}"
        first = own
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            first = store.compare_set(_FAILURE, "", own).decode()
        if first != own and isinstance(error, OSError):
            raise ConnectionError(first) from error
        raise


def _raise_failure(store: dist.Store) -> None:
    if store.check([_FAILURE]):
        raise ConnectionError(store.get(_FAILURE).decode())


def _connected(address: str, rank: int, global_peer: int, seconds: float) -> socket.socket:
    """A connection to the rank that has published this, after greeting it."""
    token, port, host = address.split(" ", 2)
    try:
        connection = socket.create_connection((host, int(port)), seconds)
        with _closed_on_error(connection):
            connection.sendall(_GREETING.pack(bytes.fromhex(token), rank))
    except OSError as error:
        raise OSError(f"cannot connect to rank {global_peer} at {host}, port {port}: {error}") from error
    return connection


def _be_welcomed(connection: socket.socket, global_peer: int, seconds: float) -> None:
    try:
        connection.settimeout(seconds)
        welcome = connection.recv(len(_WELCOME))
    except OSError as error:
        raise OSError(f"connected to rank {global_peer}, but not welcomed: {error}") from error
    if welcome != _WELCOME:
        raise ConnectionError(f"connected to rank {global_peer}, but sent away")


def _accepted(
    listener: socket.socket, token: bytes, missing: set[int], deadline: float
) -> dict[int, socket.socket]:
    """The next one who connects, by rank; nothing where that is a stranger, or nobody does."""
    try:
        listener.settimeout(min(_left(deadline), _LOOK_SECONDS))
        connection, _ = listener.accept()
    except (TimeoutError, ConnectionError):  # or it has gone before
        return {}
    with contextlib.suppress(OSError):  # of a stranger
        with _closed_on_error(connection):
            shown, rank = _greeting(connection, min(deadline, time.monotonic() + _GREETING_SECONDS))
            if not (hmac.compare_digest(shown, token) and rank in missing):
                raise ConnectionError("a stranger")
            connection.sendall(_WELCOME)
        return {rank: connection}
    return {}


def _greeting(connection: socket.socket, deadline: float) -> tuple[bytes, int]:
    """What whoever has connected says first, and no more: what follows is a message."""
    read = b""
    while len(read) < _GREETING.size:
        if time.monotonic() > deadline:
            raise TimeoutError("not greeted in time")
        connection.settimeout(_left(deadline))
        part = connection.recv(_GREETING.size - len(read))
        if not part:
            raise ConnectionError("closed before it was greeted")
        read += part
    shown, rank = _GREETING.unpack(read)
    return shown, rank


def _left(deadline: float) -> float:
    """Seconds, above 0: with a timeout of 0 a socket does not wait."""
    return max(deadline - time.monotonic(), 1e-3)


@contextlib.contextmanager
def _closed_on_error(connection: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _listener(backlog: int) -> socket.socket:
    """On an address of this host by which others may reach it."""
    for host in _own_addresses():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with contextlib.suppress(OSError):  # it may be another host's
            return socket.create_server((host, 0), family=family, backlog=backlog)
    return socket.create_server(("127.0.0.1", 0), backlog=backlog)


def _own_addresses() -> Iterator[str]:
    """As Gloo chooses: of the interface that GLOO_SOCKET_IFNAME names, or else of the host's name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        yield from _addresses_of(interface)
        raise OSError(f"GLOO_SOCKET_IFNAME: interface {interface!r} has no IPv4 or global IPv6 address")
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
