"""Where in its interval a run is, and when its ranks check that they agree."""

from typing import Any

from .decisions import Decisions

_CHECKED_AT_FIRST = 3
"""Iterations after construction or loading in all of which the ranks check that they agree."""


class IntervalPosition:
    """Counts the iterations of the interval under way, on one rank; where ranks average moves, rounds.

    An iteration is complete when all its buckets have their means, which is alike on all ranks, and reported when
    the script calls ``step``, which it may forget on one of them. So when the ranks check goes by the former.
    Losses are counted by the training thread, which goes on while another one decides: what is decided goes by the
    number that the ranks have compared, and what is reported meanwhile counts in the interval that follows.

    Args:
        decisions: how long the interval is, and whether a controller decides.
    """

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self.closed = 0
        """Complete iterations."""
        self._reported_in_all = 0  # the training thread's alone
        self._reported_before = 0  # in intervals that are over: of whoever ends them
        self.announced = 0
        """Iterations that are left of those that :meth:`announce` was told of."""
        self._checks_left = _CHECKED_AT_FIRST
        self._checked_until = 0
        """Complete iterations before which a check that found losses lacking need not be repeated."""

    def announce(self, iterations: int) -> None:
        """The caller, who decides, leaves the width as it is for so many iterations: ranks check that they agree
        before the first of them, and not in each."""
        self.announced = iterations
        self._checks_left = max(self._checks_left, 1)

    def report(self) -> None:
        """A loss has been reported."""
        self._reported_in_all += 1

    @property
    def reported(self) -> int:
        """Losses reported, by now."""
        return self._reported_in_all - self._reported_before

    def close(self) -> None:
        """An iteration is complete."""
        self.closed += 1
        self.announced = max(self.announced - 1, 0)
        self._checks_left = max(self._checks_left - 1, 0)

    def restart(self, reported: int) -> None:
        """Another interval begins; so many losses were of the one before."""
        self.closed = self._checked_until = 0
        self._reported_before += reported

    def put_off_check(self, reported: int) -> None:
        """The ranks have agreed, on this number of losses: too few to decide if each iteration has more than one
        backward. As many more iterations as losses are lacking have to be complete until there can be enough."""
        if self.closed >= self._decisions.interval > reported:
            self._checked_until = self.closed + self._decisions.interval - reported

    def recheck(self) -> None:
        """Check before the next iterations, whatever is due: another rank may have loaded another state."""
        self._checks_left, self.announced = _CHECKED_AT_FIRST, 0

    @property
    def is_last(self) -> bool:
        """Whether the iteration under way is the last of its interval, whose gradient is looked at."""
        return min(self.closed, self.reported) + 1 == self._decisions.interval

    def is_decision_due(self, reported: int) -> bool:
        """Whether an interval has ended, with so many losses, and with it what its controller waits for."""
        return (
            self._decisions.controller is not None and min(self.closed, reported) >= self._decisions.interval
        )

    @property
    def is_settled(self) -> bool:
        """Whether nobody can ask for another width before the next iteration."""
        return self._decisions.controller is not None or self.announced > 0

    @property
    def is_check_due(self) -> bool:
        """Whether the ranks check that they agree before the next iteration: the same answer on all of them.

        At the end of an interval, when its statistics are exchanged and a width is decided, and seldom until all its
        losses have been reported (:meth:`put_off_check`); in the first iterations, where a script that treats ranks
        differently is found out; and without a controller in all that have not been announced, as any may follow a
        request. In between, only what rank 0 has sent can change a width.
        """
        if self._checks_left > 0 or not self.is_settled:
            return True
        ends = max(self._decisions.interval, self._checked_until)
        return self._decisions.controller is not None and self.closed >= ends

    def state_dict(self) -> dict[str, Any]:
        """State as plain types: where ranks load it, they check anew, and nothing is announced."""
        return {"iterations_closed": self.closed, "reported": self.reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, which ``state`` may hold among other things."""
        self.closed, self._reported_in_all = state["iterations_closed"], state["reported"]
        self._checked_until = self._reported_before = 0
