"""How much of the machine others used while a run was timed: on a shared machine, a figure needs that beside it."""

import os
import resource
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class OthersLoad:
    """Measures from its construction on. This process and all below it, living or ended, are its own.

    So are interrupts, which are nobody's: here they are mostly packets between a lab's own hosts.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy = busy_seconds()
        self._own = own_seconds()

    def cores(self) -> float | None:
        """Mean number of cores that others kept busy, the host of a virtual machine included; None if unknown."""
        busy = busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (own_seconds() - self._own)
        return max(0.0, others / (time.monotonic() - self._started))


def busy_seconds() -> float | None:
    """CPU seconds spent by the whole machine since it started, or by its host in the meantime (stolen); idle, waiting
    and interrupts excluded; None without /proc."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return None
    user, nice, system, _idle, _wait, _interrupts, _soft_interrupts, stolen, *_ = map(int, first.split()[1:])
    return (user + nice + system + stolen) / _TICKS_PER_SECOND


def own_seconds() -> float:
    """CPU seconds of this process and of the processes below it, those that have ended and those that live."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + _living_seconds()


def _living_seconds() -> float:
    """CPU seconds of the living processes below this one, with those that they have waited for; 0 without /proc."""
    children: dict[int, list[tuple[int, int]]] = {}  # process and ticks, by parent
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = (
                path.read_bytes().rpartition(b")")[2].split()
            )  # a name may hold anything, or half of a letter
        except OSError:  # has ended
            continue
        children.setdefault(int(fields[1]), []).append((int(path.parent.name), sum(map(int, fields[11:15]))))
    ticks, below = 0, [os.getpid()]
    while below:
        own = children.get(below.pop(), [])
        ticks += sum(spent for _, spent in own)
        below += [process for process, _ in own]
    return ticks / _TICKS_PER_SECOND
