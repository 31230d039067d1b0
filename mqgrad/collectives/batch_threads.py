"""Threads that communicate without interrupting those that compute, under Linux's SCHED_BATCH.

Under SCHED_OTHER a thread that wakes up may take its core from another at once. Where ranks have no core to spare:

1. A thread that sends holds the lock of Gloo's connection. A message arrives there, for which Gloo's own thread wakes
   up and takes the core.
2. That thread cannot have the lock. It does not wait for it, but asks the kernel for events again and again, and is
   told of the same one (``Pair::handleEvents`` in gloo/transport/tcp/pair.cc), until its milliseconds on the core are
   over.
3. Only then does the thread that sends go on.

Under SCHED_BATCH (sched(7)) a thread that wakes up takes a core that is idle, or waits for its turn. What that gains:
docs/results-costs.md.
"""

import contextlib
import os
from collections.abc import Iterator


def be_batch_thread() -> bool:
    """Have the calling thread scheduled as SCHED_BATCH.

    So are all threads and processes that it starts from then on, such as those of OpenMP for its own kernels.

    Returns:
        whether it is now and was SCHED_OTHER before. What somebody has chosen otherwise stays, and so does all where
        the system, such as a container's, refuses or knows no such thing.
    """
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            return True
    return False


@contextlib.contextmanager
def starting_batch_threads() -> Iterator[None]:
    """Threads that the calling one starts in the block, a library's among them, are SCHED_BATCH from then on."""
    changed = be_batch_thread()
    try:
        yield
    finally:
        if changed:
            with contextlib.suppress(OSError):  # to stay as it is does less harm than to end here
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
