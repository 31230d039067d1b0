"""Segments of gradients to payloads, through error feedback whose gain may have to be learned."""

import abc
import dataclasses

import torch

from mqgrad.cuda_ext import Scattered, Vector, whole

from ..codecs.quantization_noise import squared_norm
from ..codecs.vector_codec import Feedback, VectorCodec
from ..widths import Width
from .exchange import Direction, Exchange
from .feedback import FeedbackGain
from .plans import Chunk
from .segments import Segment


@dataclasses.dataclass(kw_only=True)
class FeedbackCoder(abc.ABC):
    """Codes segments of the vector of an :class:`.Exchange`, for a :class:`.CodedMean`."""

    bucket_size: int = 512
    """Elements that share one fp32 scale."""
    observed: int | None = dataclasses.field(init=False, repr=False, default=None)
    """State: the iteration whose observations the gains have still to learn; equal on all ranks."""

    @abc.abstractmethod
    def codec(self, bits: Width) -> VectorCodec:
        """Of a width; equal on all ranks."""

    def coefficients(
        self, gain: FeedbackGain, bits: Width, *, of_deltas: bool = False
    ) -> tuple[float, float]:
        """α and β of v = x + α·h, h ← β·h + x − Q(v) (ECQ-SGD, Wu et al. 2018); x may be a move of the parameters."""
        return (1.0 if self.codec(bits).is_contractive else gain.alpha(bits)), 1.0

    def learns_gain(self, bits: Width) -> bool:
        """Whether α depends on the code's error as it is measured."""
        return not self.codec(bits).is_contractive

    def encode_shards(
        self, exchange: Exchange, direction: Direction, chunk: Chunk, messages: torch.Tensor
    ) -> None:
        """Encode the segments of a chunk of ``exchange.vector`` to the payloads in its joined messages, through the
        same elements of the residual where there is feedback."""
        bits = chunk.span.bits
        repeats_padding = self.codec(bits).repeats_padding
        if chunk.stride and not repeats_padding and not self._learns(exchange, direction, bits):
            self._encode_together(exchange, direction, chunk, messages)
            return
        for r, message in enumerate(messages.split_with_sizes(chunk.lengths)):
            for segment, payload in zip(chunk.segments[r], chunk.payloads(r, message), strict=True):
                x = self._coded_from(exchange.vector.part(segment.part), segment.bits)
                self._encode(x, exchange, direction, segment, payload)

    def _encode_together(
        self, exchange: Exchange, direction: Direction, chunk: Chunk, messages: torch.Tensor
    ) -> None:
        """By one op, which looks at nothing beside."""
        span = chunk.span
        self.codec(span.bits).encode_parts(
            exchange.vector.part(span.part),
            chunk.stride,
            direction.seed,
            exchange.layout.ids_of(span.part),
            feedback=self._feedback(exchange, direction, span),
            out=chunk.rows(messages),
        )

    def _learns(self, exchange: Exchange, direction: Direction, bits: Width) -> bool:
        """Whether the code's error is looked at, to learn its gain."""
        return direction.residual is not None and exchange.step.measure and self.learns_gain(bits)

    def encode_mean(
        self,
        exchange: Exchange,
        direction: Direction,
        segment: Segment,
        payloads: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Encode the mean of the ranks' payloads [W, P] of a segment to ``out`` [P], likewise."""
        codec, numel = self.codec(segment.bits), segment.numel
        if self._learns(exchange, direction, segment.bits):
            # the code's error is seen on the mean
            mean = codec.decode_mean(payloads, numel)
            self._encode(mean, exchange, direction, segment, out)
            return
        feedback, ids = self._feedback(exchange, direction, segment), exchange.layout.ids_of(segment.part)
        codec.encode_mean(payloads, numel, direction.seed, ids, feedback=feedback, out=out)

    def _feedback(self, exchange: Exchange, direction: Direction, segment: Segment) -> Feedback | None:
        if direction.residual is None:
            return None
        codec = self.codec(segment.bits)
        if codec.repeats_padding and codec.is_contractive:
            # Not of codes that round at random: what they make of the padding, and so its mean, is not repeated.
            direction.residual.continue_padding(segment.part)
        gains = self.coefficients(direction.gain, segment.bits, of_deltas=exchange.step.of_deltas)
        return Feedback(direction.residual.part(segment.part), *gains)

    def _coded_from(self, vector: Scattered, bits: Width) -> Vector:
        """A part of the gradients, with the padding that the code wants."""
        return vector.continued(self.bucket_size) if self.codec(bits).repeats_padding else vector

    def _encode(
        self, x: Vector, exchange: Exchange, direction: Direction, segment: Segment, out: torch.Tensor
    ) -> None:
        feedback = self._feedback(exchange, direction, segment)
        learns = self._learns(exchange, direction, segment.bits)
        value = whole(x) + feedback.alpha * feedback.residual if feedback and learns else None
        ids = exchange.layout.ids_of(segment.part)
        self.codec(segment.bits).encode(x, direction.seed, ids, feedback=feedback, out=out)
        if value is not None:
            self.observed = exchange.step.iteration
            self._observe(direction.gain, segment.bits, out, value)

    def _observe(
        self, gain: FeedbackGain, bits: Width, payload: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Take the code's error from a coded vector; return that vector decoded."""
        decoded = self.codec(bits).decode(payload, value.numel())
        gain.observe(bits, squared_norm(decoded - value), squared_norm(value))
        return decoded
