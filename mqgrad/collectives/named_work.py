"""Collectives and messages whose errors say who waited for whom: torch's tell an address at most."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from .wire_meter import Work

Result = TypeVar("Result")

_REMEDY = (
    "Another rank failed, and its own log says why; or it did something alone, such as an evaluation or saving, for "
    "longer than timeout_seconds: give CompressionState a larger one, on every rank; or it left the training loop "
    "before the others, with fewer batches (which DDP.join() does not make up for) or by a decision of its own: "
    "decide such things on all ranks together"
)


def waits_in(global_ranks: Sequence[int], rank: int, what: str) -> str:
    """Who waits in vain where any rank may be the one that is missing."""
    return f"{described_rank(global_ranks, rank)} waited in vain for another one in {what}"


def described_rank(global_ranks: Sequence[int], rank: int) -> str:
    """``rank 1 of 4``, or where these are a part of the job's ``rank 5 of ranks 4, 5``."""
    among = str(len(global_ranks)) if could_be_world(global_ranks) else f"ranks {_listed(global_ranks)}"
    return f"rank {global_ranks[rank]} of {among}"


def could_be_world(global_ranks: Sequence[int]) -> bool:
    """Whether these may be all ranks of the job, not those of another group."""
    return list(global_ranks) == list(range(len(global_ranks)))


def _listed(ranks: Sequence[int]) -> str:
    shown = [*ranks[:4], "…", ranks[-1]] if len(ranks) > 8 else ranks
    return ", ".join(map(str, shown))


class NamedWork:
    """Something under way between ranks.

    Args:
        start: starts it; what it returns, if anything, is waited for.
        waits: who waits for whom, and in what.

    Raises:
        RuntimeError: it cannot be started, as after a failure.
    """

    def __init__(self, start: Callable[[], Work | None], waits: str) -> None:
        self._waits = waits
        self._work = call_naming(waits, start)

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            RuntimeError: a rank failed or did not come in time: names the ranks and the remedy.
        """
        if self._work is not None:
            call_naming(self._waits, self._work.wait)


def call_naming(waits: str, call: Callable[[], Result]) -> Result:
    """What a call of torch returns; what it raises says who waits for whom, and the remedy: but for a
    lack of memory on this rank's GPU."""
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        failure = str(error)
    # Out here, without the error that is told: its frames hold what is under way, and with it the group.
    raise in_vain(waits, failure)


def in_vain(waits: str, failure: str) -> RuntimeError:
    """An error that says who waited for whom, why in vain, and what to do."""
    return RuntimeError(f"{waits}: {failure}. {_REMEDY}")


def failure_of(waits: str, done: torch.futures.Future[Any]) -> BaseException | None:
    """What went wrong in something that is done, if anything did, as :func:`call_naming` raises it; or a Ctrl-C."""
    try:
        call_naming(waits, done.value)
    except BaseException as failure:
        return failure.with_traceback(None)
    return None
