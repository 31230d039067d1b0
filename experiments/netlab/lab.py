"""Hosts on one machine, joined by links that the kernel shapes.

    host 0 ── eth0 ═══ port0 ──┐
    host 1 ── eth0 ═══ port1 ──┤ bridge
    …                          │
                              hub

Every host is a network namespace, and so is the hub, so that the machine's own network stays as it was. A link is a
veth pair with a token bucket at both ends: ``eth0`` shapes what the host sends, ``portN`` what it receives.

How well TCP fills such a link depends on its congestion control, which hosts would have from the machine. A lab sets
its own, so that figures of two machines can be compared.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from .iproute import NetLabError, check_available, find_tool, ip, run_batch
from .link import LinkShape
from .tcp import DEFAULT_CONGESTION_CONTROL, check_congestion_control, set_congestion_control

INTERFACE = "eth0"  # what every host's one link is called inside the host
MAX_HOSTS = 64

_PREFIX = "mqgrad-netlab"  # only namespaces that begin with it are ever touched
_NAMESPACE = re.compile(rf"{_PREFIX}\.([A-Za-z0-9_-]{{1,32}})\.(?:hub|\d+)")
_KILL_SECONDS = 5.0  # killed processes are given this long to vanish


class Counters(NamedTuple):
    """Bytes through a host's interface, Ethernet headers included."""

    rx_bytes: int
    tx_bytes: int


class NetLab:
    """N shaped hosts, from ``with`` to the end of the block.

    Args:
        hosts: how many, 1 to 64.
        link: the shape of every host's link.
        name: of the lab, for ``clean_lab``; a unique one by default. Labs of different names do not see each other.
        congestion_control: TCP's, of every host: ``cubic``, Linux's own default since 2.6.19, whatever this machine's
            is; or ``reno``, ``bbr`` or another that the kernel has.

    Raises:
        ValueError: an impossible number of hosts, or a name, of the lab or of the congestion control, with other
            characters than letters, digits, ``_``, ``-``.
        NetLabError: no Linux, no root, no ``ip`` or ``tc``, the name is taken, the kernel lacks the congestion
            control, or refused something else.
    """

    def __init__(
        self,
        hosts: int,
        link: LinkShape | None = None,
        *,
        name: str | None = None,
        congestion_control: str = DEFAULT_CONGESTION_CONTROL,
    ) -> None:
        if not 1 <= hosts <= MAX_HOSTS:
            raise ValueError(f"{hosts} hosts: a lab has 1 to {MAX_HOSTS}")
        self.hosts = hosts
        check_congestion_control(congestion_control)
        self.link = link or LinkShape()
        self.congestion_control = congestion_control
        self.name = secrets.token_hex(4) if name is None else name
        if name == "all" or not _NAMESPACE.fullmatch(self._namespace("hub")):
            raise ValueError(
                f"{name!r} is no name of a lab: up to 32 letters, digits, _ and -, and not 'all'"
            )
        self._rate_mbit_per_s: float | None = None
        self._claim: socket.socket | None = None

    def __enter__(self) -> "NetLab":
        check_available()
        claim = _claim(self.name)
        try:
            if self.name in list_labs():
                raise NetLabError(
                    f"a stale lab {self.name!r} exists; remove it with mqgrad netlab --clean {self.name}"
                )
        except BaseException:
            claim.close()
            raise
        self._claim = claim  # from here on the lab of this name is ours to remove
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, host: int) -> str:
        """The host's IPv4 address; labs are isolated, so all of them use the same ones."""
        return f"10.77.0.{host + 1}"

    def popen(self, host: int, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a command on a host, in a session of its own; options are those of ``subprocess.Popen``."""
        within = [find_tool("ip"), "netns", "exec", self._namespace(host), *command]
        return subprocess.Popen(within, start_new_session=True, **options)

    def set_rate(self, rate_mbit_per_s: float | None) -> None:
        """Give every link another rate, in both directions; None: not shaped.

        Packets of connections that are open become as large as those of new ones.
        """
        before, shape = self.link.at(self._rate_mbit_per_s), self.link.at(rate_mbit_per_s)
        ends = {self._namespace(host): [INTERFACE] for host in range(self.hosts)}
        ends[self._namespace("hub")] = [f"port{host}" for host in range(self.hosts)]
        for namespace, interfaces in ends.items():
            lines = [line for each in interfaces for line in before.changed_to(each, rate_mbit_per_s)]
            run_batch("tc", namespace, lines)
        self._rate_mbit_per_s = rate_mbit_per_s
        for namespace, interfaces in ends.items():
            packets = [f"link set {each} gso_max_size {shape.largest_packet}" for each in interfaces]
            run_batch("ip", namespace, [*packets, "route flush cache"])

    def counters(self) -> list[Counters]:
        """Bytes that each host has received and sent since the lab was built.

        The kernel moves several packets of one connection as one: they count with one header, which makes the figure
        up to 5 % smaller than on a wire.
        """
        # Read at the hub's ends of the links, where one process finds all of them. What a host sends, they receive.
        links = json.loads(ip("-n", self._namespace("hub"), "-s", "-j", "link", "show", "type", "veth"))
        ends = {link["ifname"]: link["stats64"] for link in links}
        ports = [ends[f"port{host}"] for host in range(self.hosts)]
        return [Counters(rx_bytes=port["tx"]["bytes"], tx_bytes=port["rx"]["bytes"]) for port in ports]

    def kill_all(self) -> None:
        """Kill every process on the hosts; they are given 5 seconds to vanish."""
        _kill_processes([self._namespace(host) for host in range(self.hosts)])

    def close(self) -> None:
        """Kill every process on the hosts and remove the lab. May be called twice.

        Raises:
            NetLabError: a process could not be killed, or a namespace not removed.
        """
        if self._claim is None:
            return
        try:
            _remove(self.name)
        finally:
            self._claim.close()
            self._claim = None

    def _namespace(self, host: int | str) -> str:
        return f"{_PREFIX}.{self.name}.{host}"

    def _build(self) -> None:
        hub = self._namespace("hub")
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        ip("-n", hub, "link", "set", "bridge", "addrgenmode", "none", "up")
        for host in range(self.hosts):
            self._add_host(hub, host)
        if self.link.rate_mbit_per_s is not None:
            self.set_rate(self.link.rate_mbit_per_s)

    def _add_host(self, hub: str, host: int) -> None:
        namespace, port = self._namespace(host), f"port{host}"
        ip("netns", "add", namespace)
        set_congestion_control(namespace, self.congestion_control)
        ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", namespace)
        # No link-local addresses: their chatter would be counted as the command's.
        ip("-n", hub, "link", "set", port, "addrgenmode", "none", "master", "bridge", "up")
        ip("-n", namespace, "link", "set", INTERFACE, "addrgenmode", "none", "up")
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)


def list_labs() -> list[str]:
    """Names of the labs on this machine, running or stale."""
    found = (_NAMESPACE.fullmatch(namespace) for namespace in _namespaces())
    return sorted({match[1] for match in found if match})


def clean_lab(name: str) -> None:
    """Remove a stale lab and kill what still runs in it.

    Raises:
        ValueError: there is no lab of this name.
        NetLabError: the lab is in use, or could not be removed.
    """
    check_available()
    if name not in list_labs():
        raise ValueError(f"there is no lab {name!r}; there are: {', '.join(list_labs()) or 'none'}")
    with contextlib.closing(_claim(name)):
        _remove(name)


def _claim(name: str) -> socket.socket:
    """Reserve the name. The kernel gives it back when this process ends, however it ends."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0{_PREFIX}.{name}")
    except OSError:
        claim.close()
        raise NetLabError(f"a lab {name!r} is running; stop it, or choose another name") from None
    return claim


def _remove(name: str) -> None:
    """Kill the processes of a lab, then remove its namespaces; veth pairs and bridge go with them."""
    namespaces = [each for each in _namespaces() if (m := _NAMESPACE.fullmatch(each)) and m[1] == name]
    survivors, refusals = _kill_processes(namespaces), []
    for namespace in namespaces:
        try:
            ip("netns", "delete", namespace)
        except NetLabError as error:
            refusals.append(str(error))
    if survivors:
        refusals.append(f"processes {survivors} did not end within {_KILL_SECONDS:g} s")
    if refusals:
        raise NetLabError(f"lab {name!r} could not be removed: {'; '.join(refusals)}")


def _kill_processes(namespaces: list[str]) -> list[int]:
    """Kill whatever runs in the namespaces; returns what still runs after the time limit."""
    deadline = time.monotonic() + _KILL_SECONDS
    while True:
        running = [int(pid) for each in namespaces for pid in ip("netns", "pids", each).split()]
        if not running or time.monotonic() > deadline:
            return running
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]
