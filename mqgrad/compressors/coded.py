"""Codes through a parameter server: compressed on the way to each shard's owner and on the way back."""

import dataclasses
import itertools
from collections.abc import Set
from typing import Any, get_args

import torch

from ..checks import check_choice
from ..codecs.quantization_noise import Coding
from ..collectives.transport import Transport
from ..collectives.wire_meter import DONE, Pending
from ..layout import Layout
from ..saved_state import check_keys, restore_fields, saved_fields
from ..seeding import stream_seed
from ..widths import DENSE_WIDTHS, WIDTHS, Width, Widths
from .base import BucketWork, Step
from .exchange import Direction, Exchange
from .feedback import FeedbackGain, Residual
from .feedback_coder import FeedbackCoder
from .gathered import Gathered
from .gradient_vector import GradientVector
from .push_pull import PushPull
from .segments import shard_segments
from .topology import CodedTopologyName, Topology, gathers, make_topology
from .topology_choice import MOST_RANKS, TopologyChoice
from .two_way_feedback import FEEDBACKS, TwoWayFeedback, add_owed_

_STATE = ("push_gain", "pull_gain", "choice", "observed")  # beside the feedback


@dataclasses.dataclass(kw_only=True)
class CodedMean(FeedbackCoder):
    """Averages gradients coded by a :class:`.VectorCodec`, with error feedback on both ways.

    With more than two ranks this is by default a parameter server (MQGrad's push and pull, Cui et al. 2018) whose
    role is sharded over the ranks: each receives 2·(W−1)/W of a coded model per iteration, whatever the world size.
    """

    error_feedback: bool = True
    """Keep what the code left out and send it later: an fp32 copy of the model, with shards 1 + 1/W."""
    topology: CodedTopologyName = "auto"
    """Who takes the mean: every rank of a shard (``sharded``); rank 0, whose link carries W−1 coded models each way
    (``star``, MQGrad's own); or every rank of everything (``all-gather``). ``auto``: all-gather with two ranks, where
    it costs no more bytes than shards do, else shards. ``measured``: with 3 to 8 ranks, of these two the one that
    makes more progress per second (:class:`.TopologyChoice`), so that two runs are not the same to the last bit."""
    feedback: TwoWayFeedback = dataclasses.field(init=False, repr=False, default_factory=TwoWayFeedback)
    """State: what this rank owes."""
    push_gain: FeedbackGain = dataclasses.field(init=False, repr=False, default_factory=FeedbackGain)
    pull_gain: FeedbackGain = dataclasses.field(init=False, repr=False, default_factory=FeedbackGain)
    choice: TopologyChoice = dataclasses.field(init=False, repr=False, default_factory=TopologyChoice)
    """State: of a topology that is measured."""

    def __post_init__(self) -> None:
        check_choice("topology", self.topology, get_args(CodedTopologyName))

    @property
    def widths(self) -> tuple[Width, ...]:
        """Below one bit only with feedback: what a sparse code leaves out would be lost without it."""
        return WIDTHS if self.error_feedback else DENSE_WIDTHS

    @property
    def parameter_widths(self) -> tuple[Width, ...]:
        """Those of the codec, which 32 is not in general."""
        return tuple(bits for bits in self.widths if 1 <= bits < 32)

    def is_plain(self, bits: Widths) -> bool:
        """At 32 bits, unless rank 0 takes the mean, feedback has to be handed over or gains to be learned."""
        is_all_reduce = bits == 32 and self.topology != "star"
        return is_all_reduce and self.num_residuals == 0 and self.observed is None

    def start_average_(self, work: BucketWork, step: Step) -> Pending[None]:
        if self.observed is not None and self.observed != step.iteration:
            self._learn_gains(step.transport)
        if step.bits == 32 and step.parameter_bits is None:
            self._average_plain(work, step.transport)
            return DONE
        return self._start_average_coded(work, step)

    def _average_plain(self, work: BucketWork, transport: Transport) -> None:
        """A mean in full precision, with whatever feedback a coded width has left behind."""
        if not self.feedback.holds(work.layout):
            self._servers.average_plain_(transport, work.buffer)
            return
        mean = work.layout.pack(work.gradients)  # in fp32: fp16 may not hold what is owed
        add_owed_(mean, *self._residuals(work.layout, transport), transport.world_size)
        self._servers.average_plain_(transport, mean)
        self.feedback.pay(work, mean)

    def _start_average_coded(self, work: BucketWork, step: Step) -> Pending[None]:
        if self._measures(step.transport.world_size):
            self.choice.begin_iteration(step)
        return self._exchange(work.layout, step).start_average_(work.gradients)

    def _exchange(self, layout: Layout, step: Step) -> Exchange:
        rank, world_size = step.transport.rank, step.transport.world_size
        push_residual, pull_residual = self._residuals(layout, step.transport)
        push = Direction(push_residual, self.push_gain, stream_seed(step.seed, step.iteration, rank))
        if self._gathers(world_size):
            return Gathered(coder=self, layout=layout, step=step, push=push)
        pull = Direction(pull_residual, self.pull_gain, stream_seed(step.seed, step.iteration, world_size))
        return PushPull(coder=self, layout=layout, step=step, push=push, topology=self._servers, pull=pull)

    @property
    def _servers(self) -> Topology:
        """Who owns shards, where there are any, and takes what travels uncoded."""
        return make_topology("star" if self.topology == "star" else "sharded")

    @property
    def rotated_widths(self) -> tuple[Width, ...]:
        """None: most codes have uniform levels."""
        return ()

    def coding(self, world_size: int) -> Coding:
        """What noise to expect of it; see :meth:`Compressor.coding`."""
        measures = self._measures(world_size)
        gathered_share = self.choice.interval_share if measures else float(self._gathers(world_size))
        return Coding(
            rotated=self.rotated_widths,
            # Where the topology is measured, shards may be next.
            recoded=measures or not self._gathers(world_size),
            feedback=self.error_feedback,
            relative_bytes=1 + gathered_share * (world_size / 2 - 1),
        )

    def _measures(self, world_size: int) -> bool:
        return self.topology == "measured" and 2 < world_size <= MOST_RANKS

    def _gathers(self, world_size: int) -> bool:
        """Whether every rank takes the mean of everything, in this iteration."""
        if self._measures(world_size):
            return self.choice.gathers
        return gathers("auto" if self.topology == "measured" else self.topology, world_size)

    @property
    def num_residuals(self) -> int:
        """Parameters that have error feedback now; equal on all ranks."""
        return len(self.feedback)

    def forget(self, keys: Set[int]) -> None:
        """Residuals; see :meth:`Compressor.forget`."""
        self.feedback.forget(keys)

    @property
    def chosen(self) -> str:
        """The topology, where it is measured."""
        return str(self.choice.state_dict()) if self.topology == "measured" else ""

    def tried(self, work: BucketWork, bits: Width) -> list[torch.Tensor] | None:
        """Coded in as many parts as on the way to the other ranks; see :meth:`Compressor.tried`."""
        if bits not in self.widths:
            return None
        if bits == 32:
            return [gradient.reshape(-1) for gradient in work.gradients]
        codec, layout, vector = self.codec(bits), work.layout, GradientVector(work.layout, work.gradients)
        decoded = torch.empty(layout.numel, dtype=torch.float32, device=work.gradients[0].device)
        in_shards = not self._gathers(layout.numel // layout.shard_numel)
        for (segment,) in shard_segments(layout, bits, None, in_shards=in_shards):
            part = self._coded_from(vector.part(segment.part), bits)
            payload = codec.encode(part, bucket_ids=layout.ids_of(segment.part))
            codec.decode_into_(decoded[segment.part], payload)
        return layout.views(decoded)

    def figures(self) -> dict[str, float]:
        """Of a topology that is measured, the share of iterations that gathered; see :meth:`Compressor.figures`."""
        return self.choice.figures()

    def state_dict(self) -> dict[str, Any]:
        """Residuals and measured gains of this rank."""
        return {**self.feedback.state_dict(), **saved_fields(self, _STATE)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, (*FEEDBACKS, *_STATE), repr(self))
        self.feedback.load_state_dict(state)
        restore_fields(self, _STATE, state)

    def _learn_gains(self, transport: Transport) -> None:
        """Learn from all ranks: which shards a rank owns, and so what it observes, depends on DDP's buckets."""
        self.observed = None
        gains = (self.push_gain, self.pull_gain)
        sums = torch.tensor(
            [gain.pending(bits) for gain in gains for bits in self.widths],
            dtype=torch.float64,
            device=transport.device,
        )
        transport.all_reduce_(sums)
        for (gain, bits), figures in zip(itertools.product(gains, self.widths), sums.tolist(), strict=True):
            if gain.learn(bits, *figures):
                self._learned(gain, bits)

    def _learned(self, gain: FeedbackGain, bits: Width) -> None:
        """Called after ``gain`` has learned γ at a width."""

    def _residuals(self, layout: Layout, transport: Transport) -> tuple[Residual | None, Residual | None]:
        """Of the own gradient, and of the means of the own shards, where there are any."""
        if not self.error_feedback:
            return None, None
        recoded = not self._gathers(transport.world_size)
        return self.feedback.residuals(layout, transport, self._servers.owned(transport), recoded=recoded)
