"""A run of W ranks in one process."""

import contextlib
from collections.abc import Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import mqgrad
from mqgrad.compatibility import check_compatible
from mqgrad.hook.param_groups import HasParamGroups, groups_of
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.widths import Width

from ..methods.interval import CompressedInterval, combine
from ..workloads.calls import endless_batches, scheduler_of, training_loss
from ..workloads.smooth import compressor_for
from ..workloads.workload import Batch, Workload
from .clock import ModelClock, ModelledTime
from .cluster import ControllerSpec, own_controller
from .in_process import InProcessTransport, MeetingPoint

_BUCKET_BYTES = 25 * 2**20  # DDP's default


class SimulatedRun:
    """One model and its optimizer, which the ranks share: their replicas would be identical."""

    def __init__(
        self,
        workload: Workload,
        meeting_point: MeetingPoint,
        clock: ModelClock,
        seed: int,
        controller: ControllerSpec | None,
        compressor: str,
        second_moment: mqgrad.FrozenSecondMoment | None = None,
    ) -> None:
        self._workload, self._meeting_point = workload, meeting_point
        self._clock, self._second_moment = clock, second_moment
        self._caller_decides = controller is None
        torch.manual_seed(seed)
        self.model = workload.build_model()
        self._optimizer: Optimizer = workload.build_optimizer(self.model)
        self._scheduler: LRScheduler = scheduler_of(workload, self._optimizer)
        self._ready: list[torch.Tensor] = []
        """Parameters in the order in which the first backward is done with them."""
        self._hooks = [p.register_post_accumulate_grad_hook(self._ready.append) for p in self._parameters()]
        self.ranks = [
            self._make_rank(rank, meeting_point, seed, controller, compressor)
            for rank in range(meeting_point.world_size)
        ]
        self._group([self._parameters()])  # DDP begins with all of them in one bucket

    def _make_rank(
        self,
        rank: int,
        meeting_point: MeetingPoint,
        seed: int,
        controller: ControllerSpec | None,
        compressor: str,
    ) -> "VirtualRank":
        decides = own_controller(controller)
        own_compressor = compressor_for(self._workload, compressor, meeting_point.world_size)
        check_compatible(decides, own_compressor)
        batches = endless_batches(self._workload, rank, meeting_point.world_size, seed)
        compression = mqgrad.CompressionState(
            None if decides is None else ModelledTime(decides, self._clock),
            transport=InProcessTransport(meeting_point, rank),
            compressor=own_compressor,
            seed=seed,
            optimizer=self._optimizer_of(rank),
            second_moment=self._second_moment,
        )
        torch.manual_seed(seed * meeting_point.world_size + rank)
        return VirtualRank(compression, batches)

    def _optimizer_of(self, rank: int) -> HasParamGroups | None:
        """One steps for all, and its second moment is frozen by rank 0."""
        if self._second_moment is not None and rank > 0:
            return torch.optim.Adam([torch.zeros(1)])
        return groups_of(self._optimizer)

    def begin(self, iterations: int, bits: Width | None) -> None:
        """Begin an interval; ``bits`` is None when a controller decides. What is refused changes nothing."""
        if (bits is None) == self._caller_decides:
            raise ValueError(
                f"bits={bits!r}: give a width to run(), or a controller to reset(), and not both"
            )
        for rank in self.ranks:
            rank.interval.begin(iterations, bits)

    def train(self, iterations: int) -> IntervalStatistics:
        """Train for the iterations of the interval."""
        for _ in range(iterations):
            self._train_step()
        return self._clock.apply(combine([rank.interval.end() for rank in self.ranks]))

    def close(self) -> None:
        """Stop the ranks' communication threads, of which some may wait for ranks that were interrupted."""
        self._meeting_point.abort()
        for rank in self.ranks:
            rank.compression.close()

    def _train_step(self) -> None:
        """One iteration of all ranks.

        1. Each rank in turn computes its loss and gradient. As DDP would, every one begins with rank 0's buffers.
        2. The ranks' communication threads average the gradients through their compressors.
        3. One step of the optimizer, with the mean that all ranks hold alike.
        """
        # 1.
        buffers = _copy_buffers(self.model)
        kept: list[torch.Tensor] = []
        losses = []
        for rank in self.ranks:
            _restore_buffers(self.model, buffers)
            losses.append(self._backward(rank))
            kept = kept or _copy_buffers(self.model)
        _restore_buffers(self.model, kept)
        # 2.
        futures = [rank.reduce(bucket) for rank in self.ranks for bucket in rank.buckets]
        for future in futures:
            future.wait()
        # 3.
        self.ranks[0].give_gradients()
        self._optimizer.step()
        self._scheduler.step()
        for rank, loss in zip(self.ranks, losses, strict=True):
            rank.interval.step(loss)
        if self._hooks:
            self._regroup()

    def _parameters(self) -> list[torch.Tensor]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def _group(self, groups: list[list[torch.Tensor]]) -> None:
        for rank in self.ranks:
            rank.buckets = [VirtualBucket(i, i == len(groups) - 1, group) for i, group in enumerate(groups)]

    def _regroup(self) -> None:
        """After its first iteration DDP groups parameters by the order in which rank 0's gradients were ready."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        ready = self._ready[: len(self._parameters())]
        limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, _BUCKET_BYTES]
        groups, _ = dist._compute_bucket_assignment_by_size(ready, limits)
        self._group([[ready[i] for i in group] for group in groups])

    def _backward(self, rank: "VirtualRank") -> torch.Tensor:
        with rank.random_numbers():
            batch = next(rank.batches)
            self._optimizer.zero_grad()
            loss = training_loss(self._workload, self.model, batch)
            loss.backward()
        self._check_gradients(rank)
        rank.take_gradients()
        return loss.detach()

    def _check_gradients(self, rank: "VirtualRank") -> None:
        unused = [n for n, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        if unused:
            raise ValueError(
                f"rank {self.ranks.index(rank)}: parameters took no part in the loss: {', '.join(unused[:3])}"
                f"{', …' * (len(unused) > 3)}; have it depend on them, or freeze them in build_model()"
            )


class VirtualRank:
    """What is a rank's own: its data, its random numbers, its gradient and its end of the collectives."""

    def __init__(self, compression: mqgrad.CompressionState, batches: Iterator[Batch]) -> None:
        self.compression = compression
        self.interval = CompressedInterval(compression)
        self.batches = batches
        self._random_state = torch.get_rng_state()
        self.buckets: list[VirtualBucket] = []

    @contextlib.contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Torch's default generator is this rank's within the block."""
        torch.set_rng_state(self._random_state)
        yield
        self._random_state = torch.get_rng_state()

    def take_gradients(self) -> None:
        """Copy the model's gradients into the buckets."""
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
                assert parameter.grad is not None
                view.copy_(parameter.grad)

    def reduce(self, bucket: "VirtualBucket") -> torch.futures.Future[torch.Tensor]:
        """Hand a bucket to the compression hook; DDP's own class cannot be constructed."""
        return self.compression.reduce_bucket(cast(dist.GradBucket, bucket))

    def give_gradients(self) -> None:
        """Copy the buckets into the model's gradients."""
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(view)


class VirtualBucket:
    """What the compression hook uses of DDP's ``GradBucket``."""

    def __init__(self, index: int, is_last: bool, parameters: list[torch.Tensor]) -> None:
        self._index, self._is_last, self._parameters = index, is_last, parameters
        self._buffer = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        parts = self._buffer.split([p.numel() for p in parameters])
        self._gradients = [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._is_last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        return self._gradients


def _copy_buffers(model: nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def _restore_buffers(model: nn.Module, values: list[torch.Tensor]) -> None:
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.copy_(value)
