"""All-to-alls and all-gathers on the CPU: one message from each rank to each other, over connections of our own.

Gloo's own messages cost more: a receiver first has to say that it is ready, which queues behind what it is sending
itself, and a thread of Gloo's wakes up for each part. Here the thread that sends and waits does all of it, and the
kernel carries on meanwhile:

1. To start an exchange is to hand its messages to the kernel, as far as that takes them at once.
2. To wait for one is to go on sending and receiving, of all exchanges that are under way, until it is done.

So nothing moves while that thread waits for something else between ranks. Before it does, it has to finish what is
under way (:meth:`PointToPoint.finish`): another rank may wait for that first.

All ranks start their exchanges in the same order, in which a connection carries them. A message begins with the
number of its exchange and its length, 16 bytes that the accounting leaves out, so that ranks which are out of step
find out at once.
"""

import datetime
import itertools
import os
import select
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist

from .connections import connect_all
from .named_work import described_rank, in_vain, waits_in
from .own_group import CONSTRUCTION, store_of
from .peer import Peer
from .wire_meter import Work

_LONGEST_WAIT = 1e6
"""Seconds, whatever the group's timeout; poll(2) takes 32 bits of milliseconds."""


class PointToPoint:
    """Messages between all ranks of a group; called from one thread at a time. Every wait is bounded by the group's
    timeout.

    Tensors are contiguous, payloads 1-D. They stay as they are until the work has been waited for.

    Args:
        group: whose store the ranks find each other by, each constructing this at the same point, as often as others.

    Raises:
        RuntimeError: another rank did not come, or cannot be reached; names the remedy.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._rank, world_size = group.rank(), group.size()
        self._seconds = min(_timeout_of(group), _LONGEST_WAIT)
        self._number = 0
        self._failure = ""
        ranks = dist.get_process_group_ranks(group)
        self._rank_text = described_rank(ranks, self._rank)
        try:
            connections = connect_all(_own_store(group), self._rank, ranks, self._seconds)
        except (OSError, RuntimeError) as error:
            failure = str(error)
        else:
            # No two ranks begin with the same receiver.
            order = [(self._rank + step) % world_size for step in range(1, world_size)]
            self._peers = {peer: Peer(connections[peer], ranks[peer]) for peer in order}
            _open.add(self)
            return
        raise in_vain(waits_in(ranks, self._rank, CONSTRUCTION), failure)

    def start_all_to_all(
        self, received: torch.Tensor, payloads: torch.Tensor, lengths: Sequence[int]
    ) -> Work:
        """Send the r-th of joined payloads, ``lengths[r]`` elements, to rank r; receive row r of ``received``
        [W, lengths[rank]] from rank r."""
        return self._start(_cut(payloads, lengths), _cut(received, [received.shape[1]] * len(lengths)))

    def start_all_gather(self, gathered: torch.Tensor, payload: torch.Tensor, lengths: Sequence[int]) -> Work:
        """Send a payload to everyone; receive ``lengths[r]`` elements from rank r, one behind the other."""
        return self._start(_cut(payload, [payload.numel()]) * len(lengths), _cut(gathered, lengths))

    def _start(self, messages: list[memoryview], received: list[memoryview]) -> Work:
        self._check()
        received[self._rank][:] = messages[self._rank]
        self._number += 1
        exchange = _Exchange(self)
        for rank, peer in self._peers.items():
            peer.add(self._number, messages[rank], received[rank], exchange)
        for peer in self._peers.values():
            self._attempt(peer, peer.send)
        return exchange

    def wait_for(self, exchange: "_Exchange") -> None:
        """Go on with all exchanges until this one is done.

        Raises:
            RuntimeError: a rank failed, is out of step or did not come in time: names it and the remedy.
        """
        self._move_until(lambda: exchange.num_pending == 0)

    def finish(self) -> None:
        """Wait for all exchanges that are under way.

        Raises:
            RuntimeError: as :meth:`wait_for`.
        """
        self._check()
        self._move_until(lambda: not any(peer.events for peer in self._peers.values()))

    def _move_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._seconds
        while not is_done():
            self._move(deadline)

    def _move(self, deadline: float) -> None:
        """Wait until a connection is ready, and send and receive what is possible."""
        poller, waiting = select.poll(), {}
        for peer in self._peers.values():
            if peer.events:
                poller.register(peer.connection, peer.events)
                waiting[peer.connection.fileno()] = peer
        self._check()  # before it waits for nobody
        left = deadline - time.monotonic()
        ready = poller.poll(1e3 * max(left, 0))
        if not ready or left < 0:
            ranks = ", ".join(f"rank {peer.global_rank}" for peer in waiting.values())
            self._fail(ranks, f"timed out after {self._seconds:g} s")
        for descriptor, events in ready:
            peer = waiting[descriptor]
            if events & ~select.POLLOUT:  # first, as it may say why nothing can be sent
                self._attempt(peer, peer.receive)
            if events & ~select.POLLIN:  # after a failure neither comes alone
                self._attempt(peer, peer.send)

    def _attempt(self, peer: Peer, move: Callable[[], None]) -> None:
        try:
            move()
            return
        except OSError as error:
            failure = str(error)
        self._fail(f"rank {peer.global_rank}", failure)

    def _fail(self, ranks: str, failure: str) -> NoReturn:
        """Close all connections, so that the others hear of it: they could not go on without this rank."""
        self._failure = self._failure or str(
            in_vain(f"{self._rank_text} waited in vain for {ranks}", failure)
        )
        self.close()
        raise RuntimeError(self._failure)

    def _check(self) -> None:
        if self._failure:
            raise RuntimeError(self._failure)

    def close(self) -> None:
        """Close the connections; nothing may be started then, and nothing under way comes to an end."""
        self._failure = self._failure or f"{self._rank_text} has closed its connections"
        for peer in self._peers.values():
            peer.close()
        self._peers = {}

    def let_go(self) -> None:
        """In a forked process: hold the connections no longer, without a word to the others."""
        self._failure = f"{self._rank_text}: a forked process cannot use the connections"
        for peer in self._peers.values():
            peer.connection.close()
        self._peers = {}


class _Exchange:
    """Messages under way, of which so many have still to leave or to arrive."""

    __slots__ = ("_messages", "num_pending")

    def __init__(self, messages: PointToPoint) -> None:
        self._messages, self.num_pending = messages, 0

    def wait(self) -> None:
        self._messages.wait_for(self)


def _cut(tensor: torch.Tensor, lengths: Sequence[int]) -> list[memoryview]:
    """The bytes of a tensor, in pieces of so many elements."""
    if sum(lengths) != tensor.numel():
        raise ValueError(f"messages of {list(lengths)} elements do not make up a tensor of {tensor.numel()}")
    data = tensor.view(-1).view(torch.uint8).numpy().data
    ends = itertools.accumulate(lengths, initial=0)
    return [data[start * tensor.itemsize : end * tensor.itemsize] for start, end in itertools.pairwise(ends)]


def _timeout_of(group: dist.ProcessGroup) -> float:
    """Seconds; of a backend that does not tell, torch's default."""
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    timeout: datetime.timedelta = getattr(options, "_timeout", dist.default_pg_timeout)
    return timeout.total_seconds()


def _own_store(group: dist.ProcessGroup) -> dist.Store:
    """In which this construction's keys are new: all ranks count theirs alike."""
    store = store_of(group)
    return dist.PrefixStore(f"connections {store.add(f'constructions of {group.rank()}', 1)}", store)


_open: weakref.WeakSet[PointToPoint] = weakref.WeakSet()


def _let_go_of_all() -> None:
    for messages in _open:
        messages.let_go()


# What a forked process, such as a DataLoader's worker, holds would stay open when this rank is killed.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_all)
