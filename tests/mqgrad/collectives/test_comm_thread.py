"""The communication thread: order, failures and, on a GPU, streams and seconds."""

import threading
import time

import pytest
import torch

from mqgrad import stopwatch
from mqgrad.collectives import comm_thread
from mqgrad.collectives.comm_thread import CommThread
from mqgrad.collectives.wire_meter import Pending

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SLEEP = 200_000_000  # cycles, about a tenth of a second


def test_jobs_run_in_order_and_a_failure_stops_them() -> None:
    thread, result, seen = CommThread(), torch.zeros(1), []

    def fail() -> None:
        raise ValueError("broken")

    thread.post(lambda: seen.append(0))
    assert thread.submit(lambda: seen.append(1), result).wait() is result
    thread.post(fail)
    with pytest.raises(RuntimeError, match="broken"):
        thread.submit(lambda: seen.append(2), result).wait()
    thread.run(lambda: seen.append(3))
    thread.close()
    assert seen == [0, 1, 3]


class Held:
    """A thread that begins when all jobs are there, and writes down what they do."""

    def __init__(self) -> None:
        self.thread, self.result, self.seen = CommThread(), torch.zeros(1), []
        self._go = threading.Event()
        self.thread.post(lambda: self._go.wait(10))

    def submit(self, name: str, *, fails: str = "") -> torch.futures.Future[torch.Tensor]:
        def note(part: str) -> None:
            self.seen.append(f"{part} {name}")
            if part == fails:
                raise ValueError(f"{part} {name} is broken")

        def begin() -> Pending[None]:
            note("begin")
            return Pending(lambda: note("end"))

        return self.thread.submit(begin, self.result)

    def go(self) -> None:
        self._go.set()


def test_a_job_ends_after_the_next_has_begun_or_by_itself() -> None:
    held = Held()
    futures = [held.submit("1"), held.submit("2"), held.submit("3")]
    held.go()
    assert all(future.wait() is held.result for future in futures)
    held.submit("4").wait()
    order = "begin 1, begin 2, end 1, begin 3, end 2, end 3, begin 4, end 4"
    assert ", ".join(held.seen) == order
    held.thread.close()


@pytest.mark.parametrize("others", ["post", "run", "drain", "close"])
def test_whatever_else_the_thread_does_comes_after_the_end_of_jobs(others: str) -> None:
    held = Held()
    future = held.submit("1")
    if others == "post":
        held.thread.post(lambda: held.seen.append("other"))
    held.go()
    if others == "run":
        held.thread.run(lambda: held.seen.append("other"))
    elif others == "drain":
        held.thread.drain()
    held.thread.close()
    assert future.done()
    assert held.seen == ["begin 1", "end 1"] + ["other"] * (others in ("post", "run"))


def test_an_idle_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks share cores, that it has nothing to do would be known a good deal later."""
    thread, result = CommThread(), torch.zeros(1)
    asked: list[object] = []
    monkeypatch.setattr(thread, "run", asked.append)
    thread.drain()
    thread.submit(lambda: None, result).wait()
    thread.drain()
    assert not asked
    monkeypatch.undo()
    thread.close()


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_a_failure_reaches_every_later_job(fails: str) -> None:
    """What was under way before it still ends: what went wrong there, if something did, came first."""
    held = Held()
    futures = [held.submit("0"), held.submit("1"), held.submit("2", fails=fails), held.submit("3")]
    held.go()
    assert futures[0].wait() is held.result
    assert futures[1].wait() is held.result
    for future in futures[2:]:
        with pytest.raises((ValueError, RuntimeError), match=f"{fails} 2 is broken"):
            future.wait()
    held.thread.drain()
    held.thread.close()


def test_of_two_failures_the_one_of_the_earlier_job_counts() -> None:
    """A job that ends in an error may have made another rank leave, and so the next one fail."""
    held = Held()
    futures = [held.submit("1", fails="end"), held.submit("2", fails="begin"), held.submit("3")]
    held.go()
    for future, broken in zip(futures, ("end 1", "begin 2", "end 1"), strict=True):
        with pytest.raises((ValueError, RuntimeError), match=f"{broken} is broken"):
            future.wait()
    held.thread.close()


def test_what_ends_a_program_reaches_who_waits() -> None:
    """A future that is never resolved would keep DDP waiting forever."""
    thread, result = CommThread(), torch.zeros(1)

    def leave() -> None:
        raise SystemExit(3)

    future = thread.submit(leave, result)
    thread.drain()
    assert future.done()
    with pytest.raises(BaseException, match="3"):
        future.wait()
    thread.close()


def test_an_event_that_cannot_be_recorded_reaches_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a failed kernel. The future itself records one only after it is complete."""

    def fail(result: torch.Tensor) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(comm_thread, "_record_event_on", fail)
    thread = CommThread()
    future = thread.submit(lambda: None, torch.zeros(1))
    thread.drain()
    assert future.done()
    with pytest.raises(RuntimeError, match="CUDA error"):
        future.wait()
    assert thread.has_failed
    thread.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_what_cannot_be_pickled_reaches_who_waits(device: str) -> None:
    """On CUDA, torch pickles what a future holds, to find the tensors in it."""
    thread, result = CommThread(), torch.zeros(1, device=device)

    def fail() -> None:
        raise ValueError("broken", threading.Lock())

    future = thread.submit(fail, result)
    thread.drain()
    assert future.done()
    with pytest.raises((ValueError, RuntimeError), match="broken"):
        future.wait()
    thread.close()


def test_a_job_that_leaves_something_else_pending_is_an_error() -> None:
    thread, result = CommThread(), torch.zeros(1)
    future = thread.submit(lambda: result.add_(1.0), result)  # type: ignore[arg-type]
    thread.drain()
    assert future.done()
    with pytest.raises((AttributeError, RuntimeError), match="wait"):
        future.wait()
    thread.close()


def test_what_run_raises_reaches_its_caller() -> None:
    thread = CommThread()
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 / 0)
    thread.close()


def test_the_clock_measures_at_once() -> None:
    measured: list[float] = []
    start = stopwatch.mark()
    time.sleep(0.01)
    stopwatch.since(start, measured.append)
    assert measured[0] >= 0.01
    stopwatch.settle()
    assert len(measured) == 1


@needs_gpu
def test_cuda_jobs_wait_for_the_training_stream_and_not_the_reverse() -> None:
    thread = CommThread()
    x = torch.zeros(1000, device="cuda")

    def double() -> None:
        x.mul_(2.0)

    thread.submit(double, x).wait()  # kernels are loaded when they are first called, which waits for the GPU
    torch.cuda._sleep(SLEEP)
    x.fill_(1.0)  # the job must see this
    future = thread.submit(double, x)
    value = future.wait()
    assert not torch.cuda.current_stream().query()  # nobody waited for the GPU
    assert (value + 1.0).eq(3.0).all()  # on this stream, after the job's
    thread.close()


@needs_gpu
def test_cuda_work_of_the_thread_leaves_the_training_stream_free() -> None:
    thread = CommThread(torch.device("cuda", torch.cuda.current_device()))
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    thread.submit(lambda: torch.cuda._sleep(SLEEP), x)
    event = torch.cuda.current_stream().record_event()
    event.synchronize()
    thread.drain()
    assert not torch.cuda.current_stream().query()  # it now waits for the thread's
    thread.close()


@needs_gpu
def test_cuda_seconds_are_those_of_the_gpu() -> None:
    thread, x, measured = CommThread(), torch.zeros(1000, device="cuda"), []

    def job() -> None:
        start = stopwatch.mark()
        torch.cuda._sleep(SLEEP)
        stopwatch.since(start, measured.append)

    thread.submit(job, x)
    thread.drain()
    assert measured == []  # nobody has waited
    thread.run(stopwatch.settle)
    assert measured[0] > 0.02
    thread.close()
