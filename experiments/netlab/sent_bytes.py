"""What a host of the lab sends, by the kernel's own counters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from .iproute import run_tool
from .lab import INTERFACE


class SentBytes(NamedTuple):
    """Bytes that a host sent over its interface."""

    counted: int
    """By the interface."""
    charged: int
    """By its token bucket."""


def count_bytes(run: Callable[[], object], times: int) -> SentBytes:
    """Bytes that this host sends while something runs; a barrier sees the last of them through."""
    dist.barrier()
    before = _sent()
    for _ in range(times):
        run()
    dist.barrier()
    after = _sent()
    return SentBytes(after.counted - before.counted, after.charged - before.charged)


def _sent() -> SentBytes:
    (bucket,) = json.loads(run_tool("tc", "-s", "-j", "qdisc", "show", "dev", INTERFACE, "root"))
    return SentBytes(_transmitted(), bucket["bytes"])


def _transmitted() -> int:
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (fields,) = [line.split(":")[1].split() for line in lines if line.strip().startswith(f"{INTERFACE}:")]
    return int(fields[8])  # received: bytes and seven more; then transmitted bytes
