"""Checksums behind the messages of a bucket's exchange, and what they find."""

from collections.abc import Callable, Iterable

import torch

from mqgrad import cuda_ext

from ..seeding import mixed
from .base import Step
from .plans import Chunk


class CorruptPayload(RuntimeError):
    """What arrived of another rank is not what it should have sent now.

    Where it passes through DDP, torch makes a ``RuntimeError`` with its text of it.
    """


class MessageChecks:
    """Signs and compares messages on one rank.

    A checksum depends on the iteration, the round that it ends, the bucket and the message's place in the exchange. A
    rank that has received a wrong one goes on with the exchange, so that nobody waits for it in vain, but signs what
    it still sends, if anything, as spoilt: so all ranks that hear of it raise.

    Args:
        bucket: identity of the bucket.
    """

    def __init__(self, step: Step, bucket: int) -> None:
        self._step = step
        self._salt = mixed(step.iteration, step.period, bucket)
        self._problem = ""

    @property
    def is_spoilt(self) -> bool:
        """Whether something wrong has arrived, so that what follows from it is of no use."""
        return bool(self._problem)

    def sign(self, chunk: Chunk, messages: torch.Tensor, shards: Iterable[int], place: int) -> None:
        """Write the checksums of messages of these shards, which lie one behind the other."""
        if chunk.has_checksums:
            lengths, covered = _extents(chunk, shards)
            salt = self._salt_of(place, self.is_spoilt)
            cuda_ext.write_checksums_(messages, lengths, salt, covered=covered)

    def compare(
        self,
        chunk: Chunk,
        messages: torch.Tensor,
        shards: Iterable[int],
        place: int,
        sender: Callable[[int], int],
    ) -> None:
        """Compare them where they arrive; ``sender`` tells the rank that sent the i-th."""
        if not chunk.has_checksums or self.is_spoilt:
            return
        lengths, covered = _extents(chunk, shards)
        salts = [self._salt_of(place, is_spoilt) for is_spoilt in (False, True)]
        wrong = cuda_ext.wrong_checksums(messages, lengths, salts[0], covered=covered).tolist()
        if any(wrong):
            unmarked = cuda_ext.wrong_checksums(messages, lengths, salts[1], covered=covered).tolist()
            i = wrong.index(True)
            self._problem = self._text(
                self._step.transport.global_ranks[sender(i)], is_marked=not unmarked[i]
            )

    def raise_problem(self) -> None:
        """Raise what was found.

        Raises:
            CorruptPayload: a message was wrong, here or where another rank has said so.
        """
        if self.is_spoilt:
            raise CorruptPayload(self._problem)

    def _salt_of(self, place: int, is_spoilt: bool) -> int:
        return (self._salt + 2 * place + is_spoilt) % 2**64

    def _text(self, sender: int, *, is_marked: bool) -> str:
        rank = self._step.transport.global_rank
        if is_marked:
            return f"rank {sender} has received a payload with a wrong checksum; it told rank {rank}"
        return (
            f"what rank {rank} received of rank {sender} has a wrong checksum: it has changed on its way, or is not "
            f"of iteration {self._step.iteration} and a round of {self._step.period}. Have all ranks make equally "
            "many steps, end rounds after the same one and load the state of the same iteration; else look at the "
            "memory and the network of the two hosts."
        )


def _extents(chunk: Chunk, shards: Iterable[int]) -> tuple[list[int], list[int]]:
    """Bytes of the messages of shards, and those that their checksums cover."""
    rows = list(shards)
    return [chunk.lengths[r] for r in rows], [chunk.covered[r] for r in rows]
