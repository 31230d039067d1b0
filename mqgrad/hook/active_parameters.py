"""Which parameters DDP brings in its buckets: fewer once a model has been wrapped anew with some of it frozen."""

_PHASE = 100
"""Iterations within which parameters that others have replaced do not come back in one model, whose layers may be
trained by turns."""
_TOLD_TURNS = 4
"""Layers of one model may be trained by turns; two models are by then."""


class ActiveParameters:
    """Keys of the parameters that come in the buckets of now, and what has become of the others."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        """Empty before the buckets of any grouping have all come."""
        self._gone: set[int] = set()
        self._iterations = 0
        self._seen = 0  # of these, when the keys of now were last looked at: buckets may go by for a while
        self._replaced: dict[int, int] = {}  # by key: as many as that, when wholly other parameters came
        self._left: dict[int, int] = {}  # by key: as many as that, when it came no more
        self._turns = 0  # times that some left where others came back soon
        self.takes_turns = False
        """Whether parts with others in common have come in turn, quickly, and now often enough to be told of it."""

    def count_iteration(self) -> None:
        """When its last bucket comes, before that is looked at."""
        self._iterations += 1

    def see(self) -> None:
        """All buckets of an iteration have been looked at."""
        self._seen = self._iterations

    def replace(self, keys: set[int], all_keys: set[int]) -> bool:
        """DDP now brings parameters with these keys, and no others.

        Returns:
            False, and changes nothing that counts, if they are those of another model that comes in turn.
        """
        if keys.isdisjoint(self.keys):
            self._replaced |= dict.fromkeys(self.keys, self._seen)
            if self._are_soon_back(keys, self._replaced):
                return False
        left = self.keys - keys
        takes_turn = bool(left) and self._are_soon_back(keys - self.keys, self._left)
        self._turns += takes_turn
        self.takes_turns = takes_turn and self._turns == _TOLD_TURNS
        self._left |= dict.fromkeys(left, self._seen)
        self._gone = all_keys - keys
        self.keys = keys
        return True

    def _are_soon_back(self, keys: set[int], since: dict[int, int]) -> bool:
        return any(self._iterations - since[key] <= _PHASE for key in keys if key in since)

    def take_gone(self) -> set[int]:
        """Keys of parameters that DDP has ceased to bring: once."""
        gone, self._gone = self._gone, set()
        return gone
