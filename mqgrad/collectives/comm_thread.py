"""One thread per rank that runs the collectives in order, while backward goes on.

Gloo deadlocks when a collective is started inside a ``Future.then`` callback and many buckets are in flight, so
nothing here does: jobs run one after another, in the order in which DDP hands out its buckets on every rank.

A job may leave something pending, which starts no collective when it is waited for. Then the job after it overlaps
with it, and the order of collectives is the same on every rank whenever jobs come:

1. If there is a next job already, it is begun, and then what the former left pending is waited for.
2. If there is none, that is waited for at once.

So some ranks begin the next job before they end the former, and some after it: what a job waits for must not need the
end of the former on another rank (on the CPU see :mod:`.point_to_point`).

On CUDA the thread has a stream of its own, or backward's kernels would queue behind what waits for other ranks:

1. Whoever hands over a job records an event on its stream; the thread's stream waits for it.
2. The future records an event on the thread's stream; whoever waits for it makes their stream wait for that event.
3. ``run`` and ``drain`` do the same for memory that other threads read or free without a future.
"""

import concurrent.futures
import contextlib
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from .. import stopwatch
from ..failures import short_description
from ..trace import trace_range
from .batch_threads import be_batch_thread
from .wire_meter import DONE, Pending

Result = TypeVar("Result")


class _UnderWay(NamedTuple):
    """A job that has left something pending."""

    pending: Pending[None]
    result: torch.Tensor
    future: torch.futures.Future[Any]


class CommThread:
    """A first-in first-out worker that resolves torch futures with tensors.

    Args:
        device: of the tensors that jobs work on; if it is not CUDA, the first result that is on CUDA tells.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(
            1, thread_name_prefix="mqgrad-comm", initializer=be_batch_thread
        )
        self.failure: BaseException | None = None
        """What a job, or something beside the thread, has failed with first."""
        self._is_closed = False
        self._is_latest_done: Callable[[], bool] = lambda: True  # of what was handed over last
        self._under_way: _UnderWay | None = None
        self._device = device if device is not None and device.type == "cuda" else None
        self._stream: torch.cuda.Stream | None = None

    def submit(
        self, job: Callable[[], Pending[None] | None], result: torch.Tensor
    ) -> torch.futures.Future[torch.Tensor]:
        """Run ``job`` after all earlier ones, and wait for what it returns, perhaps after the next one has begun.

        The future then holds ``result``, or raises what the job raised. After a failure every later job fails
        too: the ranks are no longer in step.
        """
        if result.is_cuda:
            self._use_stream_of(result.device)
        devices: list[int | str | torch.device] | None = [result.device] if result.is_cuda else None
        future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        self.check_open()
        self._executor.submit(self._begin, job, result, future, self._ready())
        self._is_latest_done = future.done
        return future.then(value_or_raise)

    def post(self, job: Callable[[], object]) -> None:
        """Run ``job`` after all earlier ones have ended. If it raises, the next submitted job reports it."""
        self.check_open()
        self._is_latest_done = self._executor.submit(self._run_posted, job, self._ready()).done

    def run(self, job: Callable[[], Result]) -> Result:
        """Run ``job`` after all earlier ones have ended, and return what it returns; on CUDA, the current stream
        waits."""
        self.check_open()
        result = self._executor.submit(self._run, job, self._ready()).result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return result

    def _use_stream_of(self, device: torch.device) -> None:
        if self._device not in (None, device):
            raise RuntimeError(
                f"gradients on {device}, after some on {self._device}: give every process one GPU, as DDP advises"
            )
        self._device = device

    def drain(self) -> None:
        """Wait until everything handed over so far is done."""
        if self._stream is not None or not self.is_idle:  # to ask an idle thread is to wait for a core for it
            self.run(lambda: None)

    def check(self) -> None:
        """Raise ``RuntimeError`` if a job has failed."""
        if self.failure is not None:
            raise RuntimeError(_stopped_by(self.failure)) from self.failure

    def check_open(self, call: str = "") -> None:
        """Raise ``RuntimeError`` after :meth:`close`, naming what was called then, and on which rank."""
        if self._is_closed:
            raise RuntimeError(
                f"{call and call + ': '}this CompressionState is closed: call it before close(). To train on, wrap "
                "the model in a new DistributedDataParallel, as DDP cannot drop a hook, and register a new state if "
                "gradients are to be compressed"
            )

    @property
    def is_idle(self) -> bool:
        """Whether all that was submitted or posted has ended, and nothing has failed; not after :meth:`close`."""
        return not self.has_failed and self._is_latest_done()

    @property
    def has_failed(self) -> bool:
        """Whether a job has failed, or something beside the thread."""
        return self.failure is not None

    def fail(self, failure: BaseException) -> None:
        """Something beside the thread has failed: later jobs fail, too."""
        self.failure = self.failure or failure

    def _ready(self) -> torch.Event | None:
        """What the caller's stream has been given so far."""
        return None if self._device is None else torch.cuda.current_stream(self._device).record_event()

    def _wait_for(self, ready: torch.Event | None) -> None:
        if ready is None:
            return
        if self._stream is None:
            # Ahead of backward's kernels: the link waits for what is coded.
            self._stream = torch.cuda.Stream(self._device, priority=-1)
            stopwatch.follow(self._stream)
        self._stream.wait_event(ready)

    def _run(self, job: Callable[[], Result], ready: torch.Event | None) -> Result:
        self._end(self._under_way)
        self._wait_for(ready)
        return job()

    def _run_posted(self, job: Callable[[], object], ready: torch.Event | None) -> None:
        self._end(self._under_way)  # which may fail
        try:
            if self.failure is None:
                self._run(job, ready)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            self.fail(error)

    def _begin(
        self,
        job: Callable[[], Pending[None] | None],
        result: torch.Tensor,
        future: torch.futures.Future[Any],
        ready: torch.Event | None,
    ) -> None:
        def begin() -> Pending[None] | None:
            self._wait_for(ready)
            if self._stream is not None and result.is_cuda:
                result.record_stream(self._stream)  # after a failure nobody waits for it before it is freed
            try:
                with trace_range("begin"):
                    return job()
            except BaseException as error:
                failure = error
            self._end(self._under_way)  # begun before it: what went wrong there first may be why
            raise failure

        pending = self._resolve(future, result, begin)
        self._end(self._under_way)
        if pending is not None:
            self._under_way = _UnderWay(pending, result, future)
            self._executor.submit(self._end, self._under_way)  # behind the next job, if there is one by now

    def _end(self, job: _UnderWay | None) -> None:
        """Wait for what a job left pending, unless that has been done."""
        if job is not None and job is self._under_way:
            self._under_way = None
            with trace_range("end"):
                self._resolve(job.future, job.result, lambda: job.pending.wait())

    def _resolve(
        self,
        future: torch.futures.Future[Any],
        result: torch.Tensor,
        part: Callable[[], Pending[None] | None],
    ) -> Pending[None] | None:
        """Do a part of a job. It leaves something pending, which is returned, or else the future is resolved."""
        try:
            if self.failure is not None:
                raise RuntimeError(_stopped_by(self.failure)) from self.failure
            pending = part()
            if is_done := pending is None or pending is DONE:
                _record_event_on(result)
        except BaseException as error:  # must reach the training thread, or it waits on the future forever
            traceback.clear_frames(error.__traceback__)  # they hold what is under way, and with it the group
            self.fail(error)
            future.set_result(error)
            return None
        if is_done:
            future.set_result(result)
        return None if is_done else pending

    def close(self) -> None:
        """Finish what was submitted and stop."""
        # Jobs submit their own second halves, which shutdown() would refuse: hence drain. At interpreter exit the
        # executor has done all it was given and refuses drain, too.
        with contextlib.suppress(RuntimeError):
            self.drain()
        self._is_latest_done = lambda: False
        self._is_closed = True
        self._executor.shutdown(wait=True)


def _stopped_by(failure: BaseException) -> str:
    return f"communication stopped after an earlier failure: {short_description(failure)}"


def _record_event_on(result: torch.Tensor) -> None:
    """Torch does it too, but after it has completed the future: who waits for that would hear of no failure."""
    if result.is_cuda:
        torch.cuda.current_stream(result.device).record_event()


def value_or_raise(future: torch.futures.Future[Any]) -> torch.Tensor:
    """DDP waits in C++, where ``Future.set_exception`` loses the message; raising in a callback keeps it."""
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value
