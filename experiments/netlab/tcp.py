"""TCP's congestion control on the hosts of a lab: how fast a connection sends, and its share of a link."""

import re
from pathlib import Path

from .iproute import NetLabError, ip

DEFAULT_CONGESTION_CONTROL = "cubic"
"""Linux's own default since 2.6.19."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,15}")  # 15: the kernel would cut a longer one short
_KERNEL = Path("/proc/sys/net/ipv4")
_IN_FORCE = "/proc/sys/net/ipv4/tcp_congestion_control"
# What is right already is not written: in some containers /proc/sys is read-only.
_SET = 'read -r now < "$2" && [ "$now" = "$1" ] || printf "%s\\n" "$1" > "$2"'


def check_congestion_control(name: str) -> None:
    """Raises ValueError for what cannot be the name of a congestion control."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a TCP congestion control: up to 15 letters, digits, _ and -, as in cubic"
        )


def set_congestion_control(namespace: str, name: str) -> None:
    """Let new connections of a network namespace use it; those of the machine itself stay as they are.

    Raises:
        NetLabError: the kernel refused, with what it has and how it gets the one that was asked for.
    """
    try:
        ip("netns", "exec", namespace, "sh", "-c", _SET, "sh", name, _IN_FORCE)
    except NetLabError as error:
        raise NetLabError(_reason(name) or str(error)) from error


def _reason(name: str) -> str:
    """Why the kernel refused a congestion control, and the remedy; empty if that is not known."""
    available, allowed = _kernel_has("available"), _kernel_has("allowed")
    other = "or choose another: mqgrad netlab --tcp NAME"
    if not (available and allowed):
        return ""
    if name not in available:
        there = f"it has {', '.join(available)}"
        return (
            f"this kernel has no TCP congestion control {name!r}, {there}; try modprobe tcp_{name}, {other}"
        )
    if name not in allowed:
        allow = f'sysctl -w net.ipv4.tcp_allowed_congestion_control="{" ".join([*allowed, name])}"'
        return (
            f"this kernel keeps TCP congestion control {name!r} from network namespaces; try {allow}, {other}"
        )
    return ""


def _kernel_has(which: str) -> list[str]:
    try:
        return (_KERNEL / f"tcp_{which}_congestion_control").read_text().split()
    except OSError:
        return []
