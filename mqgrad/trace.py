"""Named ranges in the traces of ``torch.profiler``."""

import contextlib

from torch.autograd import profiler


def trace_range(name: str) -> contextlib.AbstractContextManager[object]:
    """The range ``mqgrad.<name>`` of a trace; without a profiler nothing, for ``record_function`` takes microseconds.
    See :func:`open_range`."""
    return open_range(name) or contextlib.nullcontext()


def open_range(name: str) -> contextlib.AbstractContextManager[object] | None:
    """The same, to be entered; None without a profiler.

    The profiler sees the communication thread only if it is asked for all threads:
    ``experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)``.
    """
    return profiler.record_function(f"mqgrad.{name}") if profiler._is_profiler_enabled else None
