"""The collectives we use between ranks, whatever carries them."""

import abc
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch

from .paced_link import PacedLink
from .wire_meter import Pending, WireMeter

Result = TypeVar("Result")


class Transport(WireMeter, abc.ABC):
    """Collectives between the ranks of a run, called from one thread at a time in the same order on every rank.

    Those named ``start_`` return at once, and several may be under way; the others block. What is sent has to stay as
    it is until the result has been waited for.

    Bytes are those that this rank hands over for other ranks: (W−1)·P for an all-to-all or all-gather of P-byte
    payloads; 2·(W−1)/W·N for an all-reduce of N bytes, as by the rings of Gloo and NCCL. To gather on rank 0, every
    other rank hands over P; to fan out, rank 0 hands over (W−1)·P: nobody relays. In a broadcast of N bytes rank 0
    hands over N, once: whom the backend has relay it is not counted. Payloads of an all-to-all or all-gather may
    differ in length.

    Coded messages are exchanged in inference mode: tensors made there cannot be changed in place outside of it, as on
    another thread.

    Args:
        device: where tensors of control messages must live.
        paced: emulated link, to whose times collectives are stretched.
        global_ranks: of the ranks, where these are a part of the job's.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: torch.device,
        paced: PacedLink | None = None,
        global_ranks: Sequence[int] | None = None,
    ) -> None:
        super().__init__(paced)
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.global_ranks = tuple(range(world_size) if global_ranks is None else global_ranks)
        """As the job counts them: for what people read."""

    @property
    def global_rank(self) -> int:
        """This rank, as the job counts it."""
        return self.global_ranks[self.rank]

    @abc.abstractmethod
    def start_all_to_all(
        self, payloads: torch.Tensor, lengths: Sequence[int], round_trip: int | None = None
    ) -> Pending[torch.Tensor]:
        """Send the r-th of joined payloads, ``lengths[r]`` elements, to rank r; return [W, lengths[rank]] with row r
        from rank r.

        Args:
            round_trip: the :attr:`next_round_trip` of an earlier moment, where all that start since then count as
                one: one hides the latency of another.
        """
        ...

    @abc.abstractmethod
    def start_joined_all_gather(self, payload: torch.Tensor, lengths: Sequence[int]) -> Pending[torch.Tensor]:
        """Return the payloads of all ranks one behind the other, ``lengths[r]`` elements from rank r."""
        ...

    def all_gather(self, payload: torch.Tensor) -> torch.Tensor:
        """Return [W, P] with row r the payload [P] of rank r."""
        return self.start_all_gather(payload).wait()

    def start_all_gather(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        """Return [W, P] with row r the payload [P] of rank r."""
        joined = self.start_joined_all_gather(payload, [payload.numel()] * self.world_size)
        return joined.then(lambda rows: rows.view(self.world_size, payload.numel()))

    @abc.abstractmethod
    def all_reduce_(self, tensor: torch.Tensor, op: Literal["sum", "max"] = "sum") -> None:
        """Sum or maximum over ranks, in place."""
        ...

    def average_(self, buffer: torch.Tensor) -> None:
        """Mean over ranks, in place. Divided before it is summed: half precision could overflow."""
        buffer.div_(self.world_size)
        self.all_reduce_(buffer)

    def can_start_sum(self, tensor: torch.Tensor) -> bool:
        """Whether there is :meth:`start_sum` for such a tensor."""
        return False

    def start_sum(
        self, tensor: torch.Tensor, end: Callable[[BaseException | None], Result]
    ) -> torch.futures.Future[Result]:
        """Start a sum over ranks in place, from any thread but in the same order on every rank.

        Several may be under way.

        Args:
            end: called once with what went wrong, on a thread of the backend's, or on the caller's if the sum is done
                by then; the future holds what it returns, or raises what it raises. What the sum has cost is for it
                to :meth:`count`.

        Raises:
            RuntimeError: it cannot be started, as after a failure, or where :meth:`can_start_sum` says so.
        """
        raise RuntimeError(
            f"{type(self).__name__} of rank {self.global_rank} has sums that wait only: call all_reduce_()"
        )

    def counted_all_reduce(self, all_reduce: Callable[[], Result], nbytes: int) -> Result:
        """Run somebody else's all-reduce of ``nbytes`` bytes between these ranks, while nothing is under way; count
        and pace it like our own."""
        results: list[Result] = []
        wire_bytes = self.all_reduce_bytes(nbytes)
        return self._start(lambda: results.append(all_reduce()), results, wire_bytes).wait()[0]

    def all_reduce_bytes(self, nbytes: int) -> float:
        """What a rank hands over in an all-reduce of so many bytes."""
        return 2 * nbytes * (self.world_size - 1) / self.world_size

    @abc.abstractmethod
    def broadcast_(self, tensor: torch.Tensor) -> None:
        """Overwrite with the tensor of rank 0."""
        ...

    @abc.abstractmethod
    def start_gather(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        """Return [W, P] on rank 0, with row r the payload [P] of rank r; [0, P] on the others."""
        ...

    @abc.abstractmethod
    def start_fan_out(self, payload: torch.Tensor) -> Pending[torch.Tensor]:
        """Return rank 0's payload [P], which it sends to each rank itself."""
        ...

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the collectives hold; none may follow."""
        ...
