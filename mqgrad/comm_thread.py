"""One thread per rank that runs the collectives in order, while backward goes on.

Gloo deadlocks when a collective is started inside a ``Future.then`` callback and many buckets are in flight, so
nothing here does: jobs run one after another, in the order in which DDP hands out its buckets on every rank.
"""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import torch


class CommThread:
    """A first-in first-out worker that resolves torch futures with tensors."""

    def __init__(self) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mqgrad-comm")
        self._failure: Exception | None = None

    def submit(self, job: Callable[[], object], result: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Run ``job`` after all earlier ones; the future then holds ``result``, or raises what the job raised.

        After a failure every later job fails too: the ranks are no longer in step.
        """
        devices: list[int | str | torch.device] | None = [result.device] if result.is_cuda else None
        future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        ready = torch.cuda.current_stream(result.device).record_event() if result.is_cuda else None
        self._executor.submit(self._run, job, result, future, ready)
        return future.then(_value_or_raise)

    def post(self, job: Callable[[], object]) -> None:
        """Run ``job`` after all earlier ones. If it raises, the next submitted job reports it."""
        self._executor.submit(self._run_posted, job)

    def drain(self) -> None:
        """Wait until everything handed over so far is done."""
        self._executor.submit(lambda: None).result()

    def _run_posted(self, job: Callable[[], object]) -> None:
        try:
            if self._failure is None:
                job()
        except Exception as error:
            self._failure = error

    def _run(
        self,
        job: Callable[[], object],
        result: torch.Tensor,
        future: torch.futures.Future[Any],
        ready: torch.Event | None,
    ) -> None:
        try:
            if self._failure is not None:
                raise RuntimeError(f"communication stopped after an earlier failure: {self._failure}")
            if ready is not None:
                torch.cuda.current_stream(result.device).wait_event(ready)
            job()
        except Exception as error:  # must reach the training thread, which waits on the future
            self._failure = self._failure or error
            future.set_result(error)
        else:
            future.set_result(result)

    def close(self) -> None:
        """Finish what was submitted and stop."""
        self._executor.shutdown(wait=True)


def _value_or_raise(future: torch.futures.Future[Any]) -> torch.Tensor:
    """DDP waits in C++, where ``Future.set_exception`` loses the message; raising in a callback keeps it."""
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value
