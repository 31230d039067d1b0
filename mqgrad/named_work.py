"""Collectives and messages whose errors say who waited for whom: torch's tell an address at most."""

from collections.abc import Callable
from typing import TypeVar

from .wire_meter import Work

Result = TypeVar("Result")

_REMEDY = (
    "Another rank failed, and its own log says why; or it did something alone, such as an evaluation or saving, for "
    "longer than timeout_seconds: give CompressionState a larger one, on every rank"
)


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
        self._work = self._told(start)

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            RuntimeError: a rank failed or did not come in time: names the ranks and the remedy.
        """
        if self._work is not None:
            self._told(self._work.wait)

    def _told(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except RuntimeError as error:
            failure = str(error)
        # Out here, without the error that is told: its frames hold what is under way, and with it the group.
        raise RuntimeError(f"{self._waits}: {failure}. {_REMEDY}")
