"""Codes through a parameter server: compressed on the way to each shard's owner and on the way back."""

import abc
import dataclasses
import itertools
from typing import Any, get_args

import torch

from mqgrad.cuda_ext import Scattered, Vector, whole

from ..checks import check_choice
from ..codecs.quantization_noise import Coding, squared_norm
from ..codecs.vector_codec import Feedback, VectorCodec
from ..collectives.transport import Transport
from ..collectives.wire_meter import DONE, Pending
from ..layout import Layout
from ..saved_state import check_keys
from ..seeding import stream_seed
from ..widths import DENSE_WIDTHS, WIDTHS, Width, Widths
from .base import BucketWork, Step
from .exchange import Exchange, Way
from .feedback import FeedbackGain, Residual
from .gathered import Gathered
from .gradient_vector import GradientVector
from .plans import Chunk
from .push_pull import PushPull
from .segments import Segment, shard_segments
from .topology import CodedTopologyName, Topology, gathers, make_topology
from .topology_choice import MOST_RANKS, TopologyChoice
from .two_way_feedback import FEEDBACKS, TwoWayFeedback, add_owed_

_STATEFUL = ("push_gain", "pull_gain", "choice")


@dataclasses.dataclass(kw_only=True)
class CodedMean(abc.ABC):
    """Averages gradients coded by a :class:`VectorCodec`, with error feedback on both ways.

    With more than two ranks this is by default a parameter server (MQGrad's push and pull, Cui et al. 2018) whose
    role is sharded over the ranks: each receives 2·(W−1)/W of a coded model per iteration, whatever the world size.
    """

    bucket_size: int = 512
    """Elements that share one fp32 scale."""
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
    observed: int | None = dataclasses.field(init=False, repr=False, default=None)
    """State: the iteration whose observations the gains have still to learn; equal on all ranks."""

    def __post_init__(self) -> None:
        check_choice("topology", self.topology, get_args(CodedTopologyName))

    @property
    @abc.abstractmethod
    def codec(self) -> VectorCodec:
        """Equal on all ranks."""

    @property
    def widths(self) -> tuple[Width, ...]:
        """Below one bit only with feedback: what a sparse code leaves out would be lost without it."""
        return WIDTHS if self.error_feedback else DENSE_WIDTHS

    @property
    def parameter_widths(self) -> tuple[Width, ...]:
        """Those of the codec, which 32 is not in general."""
        return tuple(bits for bits in self.widths if 1 <= bits < 32)

    def coefficients(self, gain: FeedbackGain, bits: Width, *, of_moves: bool = False) -> tuple[float, float]:
        """α and β of v = x + α·h, h ← β·h + x − Q(v) (ECQ-SGD, Wu et al. 2018); x may be a move of the parameters."""
        return (1.0 if self.codec.is_contractive(bits) else gain.alpha(bits)), 1.0

    def learns_gain(self, bits: Width) -> bool:
        """Whether α depends on the code's error as it is measured."""
        return not self.codec.is_contractive(bits)

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
        """A mean in full precision, after handing over whatever feedback a coded width has left behind."""
        owes = self.feedback.holds(work.layout)
        if owes:
            add_owed_(work, *self._residuals(work.layout, transport), transport.world_size)
        buffer = work.buffer
        self._servers.average_plain_(transport, buffer)
        # An overflowing step is not applied, and what is owed stays so. The buffer is the same on every rank.
        if owes and bool(buffer.isfinite().all()):
            self.feedback.drop(work.layout)

    def _start_average_coded(self, work: BucketWork, step: Step) -> Pending[None]:
        if self._measures(step.transport.world_size):
            self.choice.begin_iteration(step)
        return self._exchange(work.layout, step).start_average_(work.gradients)

    def _exchange(self, layout: Layout, step: Step) -> Exchange:
        rank, world_size = step.transport.rank, step.transport.world_size
        push_residual, pull_residual = self._residuals(layout, step.transport)
        push = Way(push_residual, self.push_gain, stream_seed(step.seed, step.iteration, rank))
        if self._gathers(world_size):
            return Gathered(coder=self, layout=layout, step=step, push=push)
        pull = Way(pull_residual, self.pull_gain, stream_seed(step.seed, step.iteration, world_size))
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
        codec, layout, vector = self.codec, work.layout, GradientVector(work.layout, work.gradients)
        decoded = torch.empty(layout.numel, dtype=torch.float32, device=work.gradients[0].device)
        in_shards = not self._gathers(layout.numel // layout.shard_numel)
        for (segment,) in shard_segments(layout, bits, None, in_shards=in_shards):
            part = self._coded_from(vector.part(segment.part), bits)
            payload = codec.encode(part, bits, bucket_ids=layout.ids_of(segment.part))
            codec.decode_into_(decoded[segment.part], payload, bits)
        return layout.views(decoded)

    def figures(self) -> dict[str, float]:
        """Of a topology that is measured, the share of iterations that gathered; see :meth:`Compressor.figures`."""
        return self.choice.figures()

    def state_dict(self) -> dict[str, Any]:
        """Residuals and measured gains of this rank."""
        parts = {name: getattr(self, name).state_dict() for name in _STATEFUL}
        return {**self.feedback.state_dict(), **parts, "observed": self.observed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, (*FEEDBACKS, *_STATEFUL, "observed"), repr(self))
        self.feedback.load_state_dict(state)
        for name in _STATEFUL:
            getattr(self, name).load_state_dict(state[name])
        self.observed = state["observed"]

    def encode_shards(self, exchange: Exchange, way: Way, chunk: Chunk, messages: torch.Tensor) -> None:
        """Encode a chunk of the vector, through the same elements of the residual where there is feedback."""
        if self._encode_together(exchange, way, chunk, messages):
            return
        for r, message in enumerate(messages.split_with_sizes(chunk.lengths)):
            for segment, payload in zip(chunk.segments[r], chunk.payloads(r, message), strict=True):
                x = self._coded_from(exchange.vector.part(segment.part), segment.bits)
                self._encode(x, exchange, way, segment, payload)

    def _encode_together(self, exchange: Exchange, way: Way, chunk: Chunk, messages: torch.Tensor) -> bool:
        """By one op, where there is one and nothing is looked at beside."""
        span = chunk.span
        if (
            not chunk.stride
            or self.codec.repeats_padding(span.bits)
            or self._learns(exchange, way, span.bits)
        ):
            return False
        return self.codec.encode_parts(
            exchange.vector.part(span.part),
            chunk.stride,
            span.bits,
            way.seed,
            exchange.layout.ids_of(span.part),
            feedback=self._feedback(exchange, way, span),
            out=chunk.rows(messages),
        )

    def _learns(self, exchange: Exchange, way: Way, bits: Width) -> bool:
        """Whether the code's error is looked at, to learn its gain."""
        return way.residual is not None and exchange.step.measure and self.learns_gain(bits)

    def encode_mean(
        self, exchange: Exchange, way: Way, segment: Segment, payloads: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Encode the mean of the ranks' payloads [W, P] of a segment, through its residual if there is feedback."""
        if self._learns(exchange, way, segment.bits):
            # the code's error is seen on the mean
            mean = self.codec.decode_mean(payloads, segment.numel, segment.bits)
            self._encode(mean, exchange, way, segment, out)
            return
        numel, bits = segment.numel, segment.bits
        feedback, ids = self._feedback(exchange, way, segment), exchange.layout.ids_of(segment.part)
        self.codec.encode_mean(payloads, numel, bits, way.seed, ids, feedback=feedback, out=out)

    def _feedback(self, exchange: Exchange, way: Way, segment: Segment) -> Feedback | None:
        if way.residual is None:
            return None
        gains = self.coefficients(way.gain, segment.bits, of_moves=exchange.step.of_moves)
        return Feedback(way.residual.part(segment.part), *gains)

    def _coded_from(self, vector: Scattered, bits: Width) -> Vector:
        """A part of the gradients, with the padding that the code wants."""
        return vector.continued(self.bucket_size) if self.codec.repeats_padding(bits) else vector

    def _encode(self, x: Vector, exchange: Exchange, way: Way, segment: Segment, out: torch.Tensor) -> None:
        feedback = self._feedback(exchange, way, segment)
        learns = self._learns(exchange, way, segment.bits)
        value = whole(x) + feedback.alpha * feedback.residual if feedback and learns else None
        ids = exchange.layout.ids_of(segment.part)
        self.codec.encode(x, segment.bits, way.seed, ids, feedback=feedback, out=out)
        if value is not None:
            self.observed = exchange.step.iteration
            self._observe(way.gain, segment.bits, out, value)

    def _observe(
        self, gain: FeedbackGain, bits: Width, payload: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Take the code's error from a coded vector; return that vector decoded."""
        decoded = self.codec.decode(payload, value.numel(), bits)
        gain.observe(bits, squared_norm(decoded - value), squared_norm(value))
        return decoded

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

    def _learned(self, gain: FeedbackGain, bits: Width) -> None:  # noqa: B027 - most codes have nothing to add
        """Called after ``gain`` has learned γ at a width."""

    def _residuals(self, layout: Layout, transport: Transport) -> tuple[Residual | None, Residual | None]:
        """Of the own gradient, and of the means of the own shards, where there are any."""
        if not self.error_feedback:
            return None, None
        recoded = not self._gathers(transport.world_size)
        return self.feedback.residuals(layout, transport, self._servers.owned(transport), recoded=recoded)
