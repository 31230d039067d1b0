"""All-to-alls and all-gathers as messages between all ranks, whose receives are posted before anything is sent."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist

from .named_work import NamedWork, described_rank
from .wire_meter import Work

Send = Callable[[torch.Tensor], Work | None]
"""Sends this rank's part and returns at once; to be called once, with a tensor that stays as it is until the work has
been waited for."""

_TAGS = 2**31  # torch takes an int32


class _Works:
    """Messages under way, waited for together."""

    def __init__(self, works: list[NamedWork]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class PointToPoint:
    """Messages on the CPU between all ranks of a Gloo group, one from each to each.

    Gloo sends nothing before the receiver has said that it is ready, and what says so queues up behind whatever the
    receiver itself is sending: on a slow link for as long as its queue. Collectives say it when they start, which is
    when their data starts, too. Here receives may be posted before.

    All ranks post in the same order, from which the tags follow. All-to-alls, all-gathers of bytes and all-gathers of
    figures have tags of their own, so that a rank which is out of step waits for the group's timeout, and does not
    take one for another: Gloo ends the process where a message is longer than the room for it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank, world_size = group.rank(), group.size()
        # No two ranks begin with the same receiver.
        self._peers = [(self._rank + step) % world_size for step in range(1, world_size)]
        ranks = dist.get_process_group_ranks(group)
        waits = f"{described_rank(ranks, self._rank)} waited in vain for rank"
        self._waits = [f"{waits} {peer}" for peer in ranks]
        self._all_to_alls, self._of_bytes, self._of_figures = (itertools.count(kind, 3) for kind in range(3))

    def post_all_to_all(self, received: torch.Tensor, lengths: Sequence[int]) -> Send:
        """Post the receives of ``received`` [W, lengths[rank]], row r from rank r.

        Returns:
            what sends the r-th of joined payloads, ``lengths[r]`` elements, to rank r.
        """
        send = self._post(received.unbind(), self._all_to_alls)
        return lambda payloads: send(payloads.split_with_sizes(list(lengths)))

    def post_all_gather(self, gathered: torch.Tensor, lengths: Sequence[int]) -> Send:
        """Post the receives of ``gathered``, ``lengths[r]`` elements from rank r, one behind the other.

        Returns:
            what sends a payload to everyone.
        """
        numbers = self._of_bytes if gathered.dtype == torch.uint8 else self._of_figures
        send = self._post(gathered.split_with_sizes(list(lengths)), numbers)
        return lambda payload: send([payload] * (len(self._peers) + 1))

    def _post(
        self, received: Sequence[torch.Tensor], numbers: Iterator[int]
    ) -> Callable[[Sequence[torch.Tensor]], _Works]:
        """Post the receives of one message from every other rank, but of empty ones, which are not sent."""
        tag = next(numbers) % _TAGS
        receives = [
            NamedWork(partial(self._group.recv, [received[peer]], peer, tag), self._waits[peer])
            for peer in reversed(self._peers)  # in the order in which they are sent
            if received[peer].numel()
        ]

        def send(messages: Sequence[torch.Tensor]) -> _Works:
            received[self._rank].copy_(messages[self._rank])
            sends = [
                NamedWork(partial(self._group.send, [messages[peer]], peer, tag), self._waits[peer])
                for peer in self._peers
                if messages[peer].numel()
            ]
            return _Works([*receives, *sends])

        return send

    def close(self) -> None:
        """Hold the group no longer; what has been posted is not to be sent any more."""
        del self._group
