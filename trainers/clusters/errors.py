"""What goes wrong with a rank."""

LONGER = "if it only takes longer, raise timeout_seconds (--timeout-seconds of mqgrad run and train)"
"""What to do about a rank that is not heard of in time, and does not hang."""

RESTART = "the cluster is down; call restart() and then reset() to go on"
"""What a program that holds the cluster can do."""


EPISODE_LOST = "the episode is lost; env.reset() starts new workers"
"""What a program that holds the environment can do."""

OF_A_PROGRAM = (RESTART, EPISODE_LOST)
"""Remedies that are none for a person at the command line."""


class WorkerError(RuntimeError):
    """A rank of a cluster died, hung or raised. The cluster must be restarted before it is used again."""

    def __init__(self, rank: int, reason: str, details: str = "", remedy: str = "") -> None:
        super().__init__(rank, reason, details, remedy)  # all of them, so that it pickles
        self.rank = rank
        self.reason = reason
        """What happened."""
        self.details = details
        """The rank's own traceback, or the end of what it wrote."""
        self.remedy = remedy
        """What to do about it."""

    def __str__(self) -> str:
        details = f"\n--- rank {self.rank} ---\n{self.details.rstrip()}" if self.details.strip() else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"rank {self.rank} {self.reason}{remedy}{details}"


class ReplicaMismatchError(RuntimeError):
    """The ranks' parameters differ, which synchronous training must never allow."""
