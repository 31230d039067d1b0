"""What wire.py tells of one mean, and what a host of the lab sends, by the kernel's own counters."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from mqgrad.experiments.netlab.iproute import run_tool
from mqgrad.experiments.netlab.lab import INTERFACE
from mqgrad.widths import Width


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WireFigures:
    """One mean of some gradients: seconds of the slowest rank, median over rounds; bytes are means over ranks."""

    rate: str
    gradients: str
    bits: Width
    seconds: float
    wire_seconds: float
    """In collectives, waiting for other ranks included: mean over ranks, as of coding."""
    encode_seconds: float
    decode_seconds: float
    sent_bytes: float
    """By our accounting."""
    counted_bytes: float
    """By the interface's counter."""
    charged_bytes: float
    """By the link's token bucket: every packet with a header of its own."""
    line_seconds: float
    """Of ``charged_bytes`` at the link's rate."""
    payload_seconds: float
    """Of ``sent_bytes`` at the link's rate."""
    latency_seconds: float
    """Of all its collectives, if they were empty."""

    @property
    def ratio(self) -> float:
        return self.seconds / self.line_seconds

    @property
    def ratio_above_latency(self) -> float:
        return (self.seconds - self.latency_seconds) / self.line_seconds

    @property
    def ratio_to_payload(self) -> float:
        return self.seconds / self.payload_seconds

    @property
    def counted_ratio(self) -> float:
        return self.counted_bytes / self.sent_bytes

    def to_dict(self) -> dict[str, Any]:
        ratios = ("ratio", "ratio_above_latency", "ratio_to_payload", "counted_ratio")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in ratios}}


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
