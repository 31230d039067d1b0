"""How much of the machine others used while a run was timed: on a shared machine, a figure needs that beside it."""

import os
import resource
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class OthersLoad:
    """Measures from its construction on. Only what this process has waited for by then counts as its own."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy = busy_seconds()
        self._own = own_seconds()

    def cores(self) -> float | None:
        """Mean number of cores that others kept busy, the kernel on nobody's behalf included; None if unknown."""
        busy = busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (own_seconds() - self._own)
        return max(0.0, others / (time.monotonic() - self._started))


def busy_seconds() -> float | None:
    """CPU seconds spent by the whole machine since it started, idle and waiting excluded; None without /proc."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return None
    user, nice, system, _idle, _wait, interrupts, soft_interrupts, *_ = map(int, first.split()[1:])
    return (user + nice + system + interrupts + soft_interrupts) / _TICKS_PER_SECOND


def own_seconds() -> float:
    """CPU seconds of this process and of the processes below it that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
