"""Ranks find each other, and nobody else gets in between or keeps them waiting."""

import concurrent.futures
import contextlib
import errno
import socket
import threading
import time

import pytest
import torch.distributed as dist

from mqgrad.collectives import connections
from mqgrad.collectives.connections import connect_all


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def connected(store: dist.Store, world_size: int) -> list[dict[int, socket.socket]]:
    """What each rank gets, all of them threads here."""
    with concurrent.futures.ThreadPoolExecutor(world_size) as threads:
        return list(
            threads.map(lambda rank: connect_all(store, rank, range(world_size), 10.0), range(world_size))
        )


def test_each_rank_has_one_connection_to_each_other() -> None:
    by_rank = connected(dist.HashStore(), 4)
    for rank, peers in enumerate(by_rank):
        for peer, connection in peers.items():
            connection.send(bytes([rank, peer]))
    for rank, peers in enumerate(by_rank):
        assert sorted(peers) == [other for other in range(4) if other != rank]
        for peer, connection in peers.items():
            connection.settimeout(5)
            assert connection.recv(100) == bytes([peer, rank])
            connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it, within seconds."""
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1", b"\0" * 16 + b"\1" + b"\0" * 7], ids=str)
def test_a_stranger_is_sent_away(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps silent, too, and who knows no token but says that it is rank 1."""
    monkeypatch.setattr(connections, "_GREETING_SECONDS", 1.0)
    store = dist.HashStore()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(connect_all, store, 0, [0, 1], 10.0)
        store.wait(["address of 0"])
        _, port, host = store.get("address of 0").decode().split(" ")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(says)
            second = threads.submit(connect_all, store, 1, [0, 1], 10.0)
            ends = [first.result()[1], second.result()[0]]
            assert is_closed(stranger)
    ends[0].send(b"from 0")
    ends[1].settimeout(5)
    assert ends[1].recv(100) == b"from 0"
    for end in ends:
        end.close()


def test_a_rank_that_does_not_come_is_named() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="no connection of ranks 5, 7"):
        connect_all(dist.HashStore(), 0, [4, 5, 7], 0.2)
    with pytest.raises(TimeoutError, match=r"no address of rank 4$"):
        connect_all(dist.HashStore(), 1, [4, 5], 0.2)
    assert time.monotonic() - began < 10


def test_strangers_cannot_keep_a_rank_waiting() -> None:
    """Neither by coming one after another, nor by saying one byte now and then."""
    store, is_over = dist.HashStore(), threading.Event()

    def come() -> None:
        store.wait(["address of 0"])
        _, port, host = store.get("address of 0").decode().split(" ")
        while not is_over.is_set():
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1) as stranger:
                for _ in range(20):
                    time.sleep(0.01)
                    stranger.send(b"?")

    strangers = [threading.Thread(target=come) for _ in range(3)]
    for stranger in strangers:
        stranger.start()
    began = time.monotonic()
    try:
        with pytest.raises(TimeoutError, match="no connection of ranks 1"):
            connect_all(store, 0, [0, 1], 0.5)
    finally:
        is_over.set()
        for stranger in strangers:
            stranger.join()
    assert time.monotonic() - began < 10


GLOBAL_RANKS = [4, 5, 7]


def errors_where(late: int | None = None) -> list[str]:
    """Of ranks that construct, one of them half a second after the others: threads with the names of their ranks."""
    store = dist.HashStore()

    def error_of(rank: int) -> str:
        threading.current_thread().name = f"rank {rank}"
        time.sleep(0.5 * (rank == late))
        with pytest.raises(OSError, match="no room") as raised:
            connect_all(store, rank, GLOBAL_RANKS, 60.0)
        return str(raised.value)

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        errors = list(threads.map(error_of, range(3)))
    assert time.monotonic() - began < 20
    return errors


def told_of(failing: int) -> list[str]:
    told = f"rank {GLOBAL_RANKS[failing]} could not connect: no room"
    return ["no room" if rank == failing else told for rank in range(3)]


@pytest.mark.parametrize("late", [None, 0, 1, 2])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rank_that_cannot_listen_is_named_by_the_others_at_once(
    failing: int, late: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = connections._listener

    def fails(backlog: int) -> socket.socket:
        if threading.current_thread().name == f"rank {failing}":
            raise OSError("no room")
        return listen(backlog)

    monkeypatch.setattr(connections, "_listener", fails)
    assert errors_where(late) == told_of(failing)


@pytest.mark.parametrize("late", [1, 2])
def test_so_is_one_that_fails_when_others_have_connected_to_it(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accepted(listener: socket.socket, *_: object) -> None:
        if threading.current_thread().name == "rank 0":
            time.sleep(0.2)  # until another one has
            raise OSError("no room")
        time.sleep(0.05)

    monkeypatch.setattr(connections, "_accepted", lambda *arguments: accepted(*arguments) or {})
    assert errors_where(late) == told_of(0)


def test_a_rank_that_cannot_be_reached_is_named_with_its_address() -> None:
    store = dist.HashStore()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store.set("address of 0", f"{bytes(16).hex()} {port} 127.0.0.1")
    with pytest.raises(OSError, match=rf"cannot connect to rank 4 at 127\.0\.0\.1, port {port}: "):
        connect_all(store, 1, [4, 5], 5.0)


def test_a_rank_that_is_not_welcomed_is_told() -> None:
    """By somebody who listens where a rank did, or a rank that took too long to greet for a stranger."""
    store = dist.HashStore()
    with socket.create_server(("127.0.0.1", 0)) as other:
        store.set("address of 0", f"{bytes(16).hex()} {other.getsockname()[1]} 127.0.0.1")
        with pytest.raises(OSError, match="connected to rank 4, but not welcomed: timed out"):
            connect_all(store, 1, [4, 5], 0.2)


def test_a_rank_without_room_for_another_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(listener: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    with pytest.raises(OSError, match="Too many open files"):
        connect_all(dist.HashStore(), 0, [0, 1], 10.0)


def test_ranks_listen_on_the_interface_that_gloo_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(connections._own_addresses()) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")  # Gloo takes several
    assert next(connections._own_addresses()) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such")
    with pytest.raises(
        OSError, match="GLOO_SOCKET_IFNAME: interface 'no-such' has no IPv4 or global IPv6 address"
    ):
        connect_all(dist.HashStore(), 0, [0, 1], 0.2)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.2")
    assert next(connections._own_addresses()) == "127.0.0.2"


@pytest.mark.parametrize("name", ["no.such.host.invalid", "192.0.2.1"])
def test_where_the_hosts_name_is_of_no_use_ranks_listen_on_loopback(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Gloo does: a name may be unknown, or another host's."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    with connections._listener(1) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_ranks_meet_over_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    if "::1" not in connections._addresses_of("lo"):
        pytest.skip("loopback has no IPv6 address")
    monkeypatch.setattr(connections, "_own_addresses", lambda: ["::1"])
    store = dist.HashStore()
    for peers in connected(store, 2):
        assert all(connection.family == socket.AF_INET6 for connection in peers.values())
        for connection in peers.values():
            connection.close()
