"""One bucket through a parameter server: coded, pushed to the owners of its shards, averaged, coded again, pulled."""

import collections
import dataclasses
from typing import NamedTuple, Protocol

import torch

from ..feedback import FeedbackGain
from ..layout import Layout
from ..stopwatch import add_seconds
from ..transport import Start
from ..vector_codec import VectorCodec
from ..wire_meter import Pending
from .base import Step
from .gradient_vector import GradientVector
from .message_checks import MessageChecks
from .plans import Chunk, planned
from .runs import CHUNKS_AHEAD, Run
from .topology import Received, StartPush, Topology


class Way(NamedTuple):
    """To the owners of the shards, or back from them."""

    residual: torch.Tensor | None
    """float32 [numel], updated in place: of the own gradient on the way there, of the own shards' means on the way
    back. None without error feedback."""
    gain: FeedbackGain
    seed: int
    """Of the random numbers."""


class Posted(NamedTuple):
    """What of a chunk can be started."""

    push: StartPush
    pull: Start


class Coder(Protocol):
    """Codes runs of the vector of an exchange."""

    @property
    def codec(self) -> VectorCodec: ...

    @property
    def bucket_size(self) -> int: ...

    def encode(self, exchange: "Exchange", way: Way, run: Run, out: torch.Tensor) -> None:
        """Encode a run of ``exchange.vector`` to ``out`` [P], through its residual where there is feedback."""
        ...

    def encode_mean(
        self, exchange: "Exchange", way: Way, run: Run, payloads: torch.Tensor, out: torch.Tensor
    ) -> None:
        """The same of the mean of the ranks' payloads [W, P] of the run."""
        ...


@dataclasses.dataclass(kw_only=True, slots=True)
class Exchange:
    """The mean over ranks of one bucket's gradients, through coded payloads."""

    coder: Coder
    topology: Topology
    layout: Layout
    step: Step
    push: Way
    pull: Way
    codec: VectorCodec = dataclasses.field(init=False)
    _checks: MessageChecks = dataclasses.field(init=False, repr=False)
    vector: GradientVector = dataclasses.field(init=False, repr=False)
    """The gradients, and then their mean."""

    def __post_init__(self) -> None:
        self.codec = self.coder.codec
        self._checks = MessageChecks(self.step, self.layout.keys[0])

    def start_average_(self, gradients: list[torch.Tensor]) -> Pending[None]:
        """Replace the gradients by their mean over ranks: all but step 6, which is done by who waits.

        1. Add this rank's residual and encode every shard; keep what the code left out as the new residual.
        2. Push every shard to its owner: an all-to-all where rank r owns shard r.
        3. Decode and sum the W versions of each own shard in fp32; divide by W.
        4. Add the shard's residual, encode the mean again, keep what was left out.
        5. Pull the coded means: an all-gather where rank r owns shard r.
        6. Decode all shards, the own one included, so that every rank ends with the same bits.

        That happens chunk by chunk: while one is coded, those before it are on the wire. No collective is
        started by step 6, so that the next bucket may begin before it, on some ranks, or after it. On the CPU
        messages end with a checksum; a wrong one is an error where the end is waited for, a ``CorruptPayload``, and
        gradients and residuals are not to be used then.
        """
        layout, step = self.layout, self.step
        chunks = planned(layout, self.codec, step.bits, step.parameter_bits, self.coder.bucket_size)
        with add_seconds(step.costs, "encode_seconds"):
            self.vector = GradientVector(layout, gradients)
        pulled = self._push_and_pull(chunks)
        _clear_padding(self.push.residual, layout)
        _clear_padding(self.pull.residual, layout)

        def finish() -> None:
            # 6.
            for chunk, pull in zip(chunks, pulled, strict=True):
                self._decode(chunk, pull.wait())
            with add_seconds(step.costs, "decode_seconds"):
                self.vector.finish()
            self._checks.raise_problem()

        return Pending(finish)

    def bucket_ids(self, run: Run) -> torch.Tensor:
        """int64 [buckets of the run]: the identity of each scale bucket."""
        size = self.coder.bucket_size
        return self.layout.bucket_ids[run.part.start // size : run.part.stop // size]

    def _push_and_pull(self, chunks: list[Chunk]) -> list[Pending[torch.Tensor]]:
        """Steps 1 to 5 of all chunks, up to the pulls under way."""
        posted = [self._post(chunk) for chunk in chunks]
        pushed: collections.deque[Pending[Received]] = collections.deque()
        pulled: list[Pending[torch.Tensor]] = []

        def answer_oldest() -> None:
            i = len(pulled)
            pulled.append(posted[i].pull(self._coded_means(chunks[i], pushed.popleft().wait())))

        for chunk, ready in zip(chunks, posted, strict=True):
            pushed.append(ready.push(self._coded_shards(chunk)))
            if len(pushed) > CHUNKS_AHEAD:
                answer_oldest()
        while pushed:
            answer_oldest()
        return pulled

    def _post(self, chunk: Chunk) -> Posted:
        transport, like = self.step.transport, self._new_messages(0)
        return Posted(
            self.topology.post_push(transport, chunk.lengths, like),
            self.topology.post_pull(transport, chunk.lengths, like),
        )

    def _new_messages(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.layout.bucket_ids.device)

    def _coded_shards(self, chunk: Chunk) -> torch.Tensor:
        """Step 1: the messages of all shards, joined."""
        with add_seconds(self.step.costs, "encode_seconds"):
            messages = self._new_messages(sum(chunk.lengths))
            for r, message in enumerate(messages.split_with_sizes(chunk.lengths)):
                for run, payload in zip(chunk.runs[r], chunk.payloads(r, message), strict=True):
                    self.coder.encode(self, self.push, run, payload)
            self._checks.sign(chunk, messages, range(len(chunk.lengths)), chunk.place)
        return messages

    def _coded_means(self, chunk: Chunk, received: Received) -> torch.Tensor:
        """Steps 3 and 4: the messages of the owned shards' means, joined."""
        owned = self.topology.owned(self.step.transport)
        lengths = [chunk.lengths[r] for r in owned]
        with add_seconds(self.step.costs, "encode_seconds"):
            means = self._new_messages(sum(lengths))
            for r, versions, mean in zip(owned, received, means.split_with_sizes(lengths), strict=True):
                same = [r] * len(versions)
                self._checks.compare(chunk, versions.reshape(-1), same, chunk.place, lambda rank: rank)
                payloads = zip(chunk.payloads(r, versions), chunk.payloads(r, mean), strict=True)
                for run, (pushed, payload) in zip(chunk.runs[r], payloads, strict=True):
                    self.coder.encode_mean(self, self.pull, run, pushed, payload)
            self._checks.sign(chunk, means, owned, chunk.place + 1)
        return means

    def _decode(self, chunk: Chunk, pulled: torch.Tensor) -> None:
        """Step 6."""
        with add_seconds(self.step.costs, "decode_seconds"):
            shards = range(len(chunk.lengths))
            self._checks.compare(chunk, pulled, shards, chunk.place + 1, self.topology.owner)
            if self._checks.is_spoilt:
                return
            for r, message in enumerate(pulled.split_with_sizes(chunk.lengths)):
                for run, payload in zip(chunk.runs[r], chunk.payloads(r, message), strict=True):
                    self.codec.decode_into_(self.vector.part(run.part), payload, run.bits)


def _clear_padding(residual: torch.Tensor | None, layout: Layout) -> None:
    """Padding owes nothing: a checkpoint and another bucket layout do not carry it along."""
    if residual is not None:
        residual.index_fill_(0, layout.padding, 0.0)
