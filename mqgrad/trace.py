"""Named ranges in the traces of ``torch.profiler``."""

import contextlib

from torch.autograd import profiler


def trace_range(name: str) -> contextlib.AbstractContextManager[object]:
    """The range ``mqgrad.<name>`` of a trace; without a profiler nothing, for ``record_function`` takes microseconds.

    The profiler sees the communication thread only if it is asked for all threads:
    ``experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)``.
    """
    if not profiler._is_profiler_enabled:
        return contextlib.nullcontext()
    return profiler.record_function(f"mqgrad.{name}")
