"""Collectives between virtual ranks that are threads of one process."""

import threading
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from mqgrad.collectives.transport import Transport
from mqgrad.collectives.wire_meter import Pending


class MeetingPoint:
    """Where W virtual ranks, each on a thread of its own, meet and look at one another's tensors.

    Args:
        world_size: how many.
        timeout_seconds: longest that a rank waits for the others.
    """

    def __init__(self, world_size: int, timeout_seconds: float) -> None:
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=timeout_seconds)
        self._tensors: list[torch.Tensor] = [torch.empty(0)] * world_size

    def abort(self) -> None:
        """Have whoever waits here, and whoever comes, fail at once: the run is over."""
        self._barrier.abort()

    def meet(
        self, rank: int, tensor: torch.Tensor, read: Callable[[list[torch.Tensor]], torch.Tensor]
    ) -> torch.Tensor:
        """Show a tensor to the others, and return what ``read`` copies from all of them, which stay as they are.

        Raises:
            RuntimeError: another rank failed, or did not come in time.
        """
        try:
            self._tensors[rank] = tensor
            self._barrier.wait()
            result = read(self._tensors)
            self._barrier.wait()  # nobody changes its tensor before all have read it
        except threading.BrokenBarrierError:
            raise RuntimeError(f"virtual rank {rank} waited in vain for another one, which failed") from None
        except BaseException:
            self._barrier.abort()
            raise
        return result


class InProcessTransport(Transport):
    """The collectives over a :class:`MeetingPoint`, with the bytes counted that a process group would send.

    Sums are taken in the order of the ranks.
    """

    def __init__(self, meeting_point: MeetingPoint, rank: int) -> None:
        super().__init__(rank, meeting_point.world_size, torch.device("cpu"))
        self._meeting_point = meeting_point

    def start_all_to_all(
        self, payloads: torch.Tensor, lengths: Sequence[int], round_trip: int | None = None
    ) -> Pending[torch.Tensor]:
        start, own = sum(lengths[: self.rank]), lengths[self.rank]
        return self._start_meeting(
            payloads,
            lambda sent: torch.stack([joined[start : start + own] for joined in sent]),
            (payloads.numel() - own) * payloads.itemsize,
            round_trip,
        )

    def start_joined_all_gather(self, payload: torch.Tensor, lengths: Sequence[int]) -> Pending[torch.Tensor]:
        return self._start_meeting(payload, torch.cat, payload.nbytes * (self.world_size - 1))

    def all_reduce_(self, tensor: torch.Tensor, op: Literal["sum", "max"] = "sum") -> None:
        tensor.copy_(self._meet(tensor, _sum if op == "sum" else _max, self.all_reduce_bytes(tensor.nbytes)))

    def broadcast_(self, tensor: torch.Tensor) -> None:
        wire_bytes = tensor.nbytes if self.rank == 0 and self.world_size > 1 else 0
        tensor.copy_(self._meet(tensor, lambda tensors: tensors[0].clone(), wire_bytes))

    def start_gather(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        is_server = self.rank == 0
        nothing = payload.new_empty(0, payload.numel())
        return self._start_meeting(
            payload,
            lambda sent: torch.stack(sent) if is_server else nothing,
            0 if is_server else payload.nbytes,
        )

    def start_fan_out(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        wire_bytes = payload.nbytes * (self.world_size - 1) if self.rank == 0 else 0
        return self._start_meeting(payload, lambda sent: sent[0].clone(), wire_bytes)

    def close(self) -> None:
        """Nothing to give back."""

    def _meet(
        self, tensor: torch.Tensor, read: Callable[[list[torch.Tensor]], torch.Tensor], wire_bytes: float
    ) -> torch.Tensor:
        return self._start_meeting(tensor, read, wire_bytes).wait()

    def _start_meeting(
        self,
        tensor: torch.Tensor,
        read: Callable[[list[torch.Tensor]], torch.Tensor],
        wire_bytes: float,
        round_trip: int | None = None,
    ) -> Pending[torch.Tensor]:
        """Meet at once: between threads there is nothing to overlap with."""
        results: list[torch.Tensor] = []
        pending = self._start(
            lambda: results.append(self._meeting_point.meet(self.rank, tensor, read)),
            results,
            wire_bytes,
            round_trip=round_trip,
        )
        return pending.then(lambda results: results[0])


def _sum(tensors: list[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def _max(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors).amax(0)
