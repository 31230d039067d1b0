"""Messages between the ranks of a torchrun job, through the job's store."""

import contextlib
import datetime
import itertools
import pickle
import time
from typing import Any

import torch.distributed as dist

_SLICE_SECONDS = 5.0  # a wait in C++ keeps Ctrl-C waiting too


class ControlChannel:
    """What rank 0 tells the others and what they answer, one exchange after another.

    Not collectives: a rank that waits for an answer has to learn *who* does not give one. And Gloo's threads need the
    interpreter to release the tensors of a collective, which aborts a process that exits right after it
    (https://github.com/pytorch/pytorch/issues/190489).

    Messages are pickles, and the store asks nobody who they are: as with torch.distributed's own object collectives,
    whoever reaches the job's port can run code on its ranks.

    Construct it on every rank of an initialized job at the same point.
    """

    _channels = itertools.count()

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        # Its own connection: a wait would keep the process groups from using theirs.
        store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
        self._store = dist.PrefixStore(f"mqgrad/{next(self._channels)}", store)
        self._told = self._answered = 0

    def tell(self, message: Any, timeout_seconds: float) -> Any:
        """Return rank 0's message on every rank; what the others pass is ignored.

        Raises:
            RuntimeError: nothing came in time, or the store is gone.
        """
        key = f"told/{self._told + 1}"
        if self.rank == 0:
            self._put(key, message)  # before it is counted: what does not pickle has not been told
        else:
            self._wait([key], timeout_seconds)
            message = pickle.loads(self._store.get(key))
        self._told += 1
        return message

    def gather(self, answer: Any, timeout_seconds: float) -> dict[int, Any]:
        """Give an answer and return those of all ranks that have given one in time, by rank.

        Raises:
            RuntimeError: the store is gone.
        """
        keys = self.answer(answer)
        with contextlib.suppress(dist.DistStoreError):
            self._wait(keys, timeout_seconds)
        given = [rank for rank, key in enumerate(keys) if self._store.check([key])]
        answers = self._store.multi_get([keys[rank] for rank in given])
        self._forget()
        return {rank: pickle.loads(a) for rank, a in zip(given, answers, strict=True)}

    def answer(self, answer: Any) -> list[str]:
        """Give an answer without waiting for the others'; return where those of all ranks will be."""
        self._answered += 1
        keys = [f"answer/{self._answered}/{rank}" for rank in range(self.world_size)]
        self._put(keys[self.rank], answer)
        return keys

    def next_number(self, name: str) -> int:
        """1 for the first rank that asks, 2 for the next: an order of events that needs no shared clock."""
        return self._store.add(name, 1)

    def leave(self, timeout_seconds: float) -> None:
        """Say that this rank needs the store no more. Rank 0, whose process may hold it, waits for the others."""
        keys = [f"left/{rank}" for rank in range(self.world_size)]
        with contextlib.suppress(RuntimeError):  # gone already
            self._put(keys[self.rank], None)
            if self.rank == 0:
                self._wait(keys, timeout_seconds)

    def _forget(self) -> None:
        """Every rank has given this answer, so none still reads what came before it."""
        self._store.delete_key(f"answer/{self._answered - 1}/{self.rank}")
        if self.rank == 0:
            self._store.delete_key(f"told/{self._told - 1}")

    def _put(self, key: str, message: Any) -> None:
        self._store.set(key, pickle.dumps(message))  # type: ignore[arg-type] # takes bytes, whatever its stub says

    def _wait(self, keys: list[str], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not self._is_there(keys, min(deadline - time.monotonic(), _SLICE_SECONDS)):
            if time.monotonic() >= deadline:
                raise dist.DistStoreError(
                    f"rank {self.rank} waited {timeout_seconds:g} s for {', '.join(keys)}"
                )

    def _is_there(self, keys: list[str], timeout_seconds: float) -> bool:
        try:
            self._store.wait(keys, datetime.timedelta(seconds=max(timeout_seconds, 0.001)))
        except dist.DistStoreError:
            return False
        return True
