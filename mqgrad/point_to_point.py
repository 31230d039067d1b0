"""Messages from every rank to every other one, whose receives are posted before anything is sent."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from .wire_meter import Work

_TAGS = 2**31  # torch takes an int32


class _Works:
    """Messages under way, waited for together."""

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


Exchange = Callable[[Sequence[torch.Tensor]], Work | None]


class PointToPoint:
    """Direct messages between all ranks of a Gloo group.

    Gloo sends nothing before the receiver has said that it is ready, and what says so queues up behind whatever the
    receiver itself is sending: on a slow link for as long as its queue. Collectives say it when they start, which is
    when their data starts, too. Here a receive may be posted long before: see :meth:`post`.

    All ranks post in the same order.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._posted = group, 0
        self._rank, world_size = group.rank(), group.size()
        # No two ranks begin with the same receiver.
        self._peers = [(self._rank + step) % world_size for step in range(1, world_size)]

    def post(self, received: Sequence[torch.Tensor]) -> Exchange:
        """Post the receives of one message from every other rank, to ``received[r]``.

        Returns:
            what sends ``messages[r]`` to rank r and returns at once; to be called once, with tensors that stay as
            they are until everything has been waited for. Empty ones are not sent.
        """
        tag = self._posted % _TAGS
        self._posted += 1
        receives = [
            self._group.recv([received[peer]], peer, tag)
            for peer in reversed(self._peers)
            if received[peer].numel()
        ]

        def send(messages: Sequence[torch.Tensor]) -> _Works:
            sends = [
                self._group.send([messages[peer]], peer, tag)
                for peer in self._peers
                if messages[peer].numel()
            ]
            received[self._rank].copy_(messages[self._rank])
            return _Works([*receives, *sends])

        return send
