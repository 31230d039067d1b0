"""Seconds of pieces of work that, on CUDA, have only been started when the call returns.

There they are measured between events on a stream, and known once the GPU has got that far. The communication thread
reads them when it opens the next iteration, so that no other thread waits: they count one iteration late. It waits
for those of a run's first iteration, which holds start-up, and of the last of an interval, on which one decides.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .costs import Costs
from .trace import open_range

Mark = float | torch.Event
"""A moment: of the clock, or of a CUDA stream."""


class _Span(NamedTuple):
    start: torch.Event
    end: torch.Event
    add: Callable[[float], None]


class _Thread(threading.local):
    stream: torch.cuda.Stream | None = None

    def __init__(self) -> None:
        self.spans: list[_Span] = []


_thread = _Thread()


def follow(stream: torch.cuda.Stream) -> None:
    """Make a stream the current one of this thread and measure this thread's work on it from now on."""
    torch.cuda.set_stream(stream)
    _thread.stream = stream


def mark(device: torch.device | None = None) -> Mark:
    """Now, on the current stream of a CUDA device, by default on that which the thread follows; else by the clock."""
    stream = _thread.stream
    if device is not None and device.type == "cuda":
        stream = torch.cuda.current_stream(device)
    return (
        time.perf_counter() if stream is None else stream.record_event(torch.cuda.Event(enable_timing=True))
    )


def since(start: Mark, add: Callable[[float], None]) -> None:
    """Call ``add`` with the seconds from ``start`` to now: at once, or from :func:`settle` if they are CUDA's."""
    if isinstance(start, float):
        add(time.perf_counter() - start)
        return
    end = mark()
    assert not isinstance(end, float), "a CUDA mark is for a thread that follows a stream"
    _thread.spans.append(_Span(start, end, add))


class Timed:
    """Hands the seconds of a block that does not raise to ``add``, and shows the block in traces.

    (A class, as a generator of ``contextlib`` costs the communication thread twice as much, a dozen times a bucket.)
    """

    __slots__ = ("_add", "_name", "_range", "_start")

    def __init__(self, name: str, add: Callable[[float], None]) -> None:
        self._name, self._add = name, add

    def __enter__(self) -> None:
        self._start = mark()
        self._range = open_range(self._name)
        if self._range is not None:
            self._range.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *failure: Any) -> None:
        if self._range is not None:
            self._range.__exit__(kind, *failure)
        if kind is None:
            since(self._start, self._add)


def add_seconds(costs: Costs, name: str) -> Timed:
    """Add the block's seconds to the field of ``costs`` and show it in traces."""
    return Timed(
        name.removesuffix("_seconds"), lambda seconds: setattr(costs, name, getattr(costs, name) + seconds)
    )


def settle() -> None:
    """Wait until the GPU has done what this thread measured, and call every ``add``."""
    spans, _thread.spans = _thread.spans, []
    for span in spans:
        span.end.synchronize()
        span.add(span.start.elapsed_time(span.end) / 1e3)
