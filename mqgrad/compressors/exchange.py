"""One bucket through a parameter server: coded, pushed to the owners of its shards, averaged, coded again, pulled."""

import dataclasses
import itertools
from typing import NamedTuple, Protocol

import torch

from ..feedback import FeedbackGain
from ..layout import Layout
from ..stopwatch import add_seconds
from ..vector_codec import VectorCodec
from ..wire_meter import Pending
from .base import Step
from .runs import Chunk, Run, planned
from .topology import Received, Topology, join

Pulled = tuple[torch.Tensor, ...]
"""The coded means of all shards."""


class Way(NamedTuple):
    """To the owners of the shards, or back from them."""

    residual: torch.Tensor | None
    """float32 [numel], updated in place: of the own gradient on the way there, of the own shards' means on the way
    back. None without error feedback."""
    gain: FeedbackGain
    seed: int
    """Of the random numbers."""


class Coder(Protocol):
    """Codes runs of the vector of an exchange."""

    @property
    def codec(self) -> VectorCodec: ...

    @property
    def bucket_size(self) -> int: ...

    def encode(
        self, exchange: "Exchange", way: Way, run: Run, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Encode a run of ``exchange.flat``, to ``out`` if given, through its residual where there is feedback."""
        ...

    def encode_mean(self, exchange: "Exchange", way: Way, run: Run, payloads: torch.Tensor) -> torch.Tensor:
        """Encode the mean of the ranks' payloads [W, P] of a run, through its residual where there is feedback."""
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
    flat: torch.Tensor = dataclasses.field(init=False, repr=False)
    """float32 [numel]: the gradients, and then their mean."""

    def __post_init__(self) -> None:
        self.codec = self.coder.codec

    def start_average_(self, gradients: list[torch.Tensor]) -> Pending[None]:
        """Replace the gradients by their mean over ranks: all but step 6, which is done by who waits.

        1. Add this rank's residual and encode every shard; keep what the code left out as the new residual.
        2. Push every shard to its owner: an all-to-all where rank r owns shard r.
        3. Decode and sum the W versions of each own shard in fp32; divide by W.
        4. Add the shard's residual, encode the mean again, keep what was left out.
        5. Pull the coded means: an all-gather where rank r owns shard r.
        6. Decode all shards, the own one included, so that every rank ends with the same bits.

        That happens chunk by chunk: while one is coded, those before and after it are on the wire. No collective is
        started by step 6, so that the next bucket may begin before it, on some ranks, or after it.
        """
        layout, step = self.layout, self.step
        chunks = planned(layout, self.codec, step.bits, step.parameter_bits, self.coder.bucket_size)
        with add_seconds(step.costs, "encode_seconds"):
            self.flat = self._packed(gradients)
        # 1. and 2.
        pushed = [self._start_push(chunk) for chunk in chunks]
        _clear_padding(self.push.residual, layout)
        # 3. to 5.
        pulled = [self._start_pull(chunk, push.wait()) for chunk, push in zip(chunks, pushed, strict=True)]
        _clear_padding(self.pull.residual, layout)

        def finish() -> None:
            # 6.
            for chunk, pull in zip(chunks, pulled, strict=True):
                self._decode(chunk, pull.wait())
            with add_seconds(step.costs, "decode_seconds"):
                layout.unpack(self.flat, gradients)

        return Pending(finish)

    def bucket_ids(self, run: Run) -> torch.Tensor:
        """int64 [buckets of the run]: the identity of each scale bucket."""
        size = self.coder.bucket_size
        return self.layout.bucket_ids[run.part.start // size : run.part.stop // size]

    def _packed(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The gradients. Padding repeats elements, for the sake of scales, or is zero where that is of no use."""
        layout, codec, widths = self.layout, self.codec, self.step.parameter_bits
        if widths is None:
            return layout.pack(gradients, fill_padding=codec.repeats_padding(self.step.bits))
        flat = layout.pack(gradients)
        for part, bits in zip(layout.continuations, widths, strict=True):
            if not codec.repeats_padding(bits):
                flat[part] = 0.0
        return flat

    def _start_push(self, chunk: Chunk) -> Pending[Received]:
        """Steps 1 and 2."""
        with add_seconds(self.step.costs, "encode_seconds"):
            payloads = self.flat.new_empty(sum(chunk.shard_lengths), dtype=torch.uint8)
            pieces = payloads.split_with_sizes(list(itertools.chain(*chunk.lengths)))
            for run, piece in zip(itertools.chain(*chunk.runs), pieces, strict=True):
                self.coder.encode(self, self.push, run, out=piece)
        return self.topology.push(self.step.transport, payloads, chunk.shard_lengths)

    def _start_pull(self, chunk: Chunk, received: Received) -> Pending[Pulled]:
        """Steps 3 to 5."""
        transport = self.step.transport
        with add_seconds(self.step.costs, "encode_seconds"):
            means = [
                self.coder.encode_mean(self, self.pull, run, payloads)
                for r, shard in zip(self.topology.owned(transport), received, strict=True)
                for run, payloads in zip(
                    chunk.runs[r], shard.split_with_sizes(chunk.lengths[r], dim=1), strict=True
                )
            ]
            coded = join(means, self.flat.device)
        return self.topology.pull(transport, coded, chunk.shard_lengths)

    def _decode(self, chunk: Chunk, pulled: Pulled) -> None:
        """Step 6."""
        with add_seconds(self.step.costs, "decode_seconds"):
            for runs, payload, lengths in zip(chunk.runs, pulled, chunk.lengths, strict=True):
                for run, piece in zip(runs, payload.split_with_sizes(lengths), strict=True):
                    self.codec.decode_into_(self.flat[run.part], piece, run.bits)


def _clear_padding(residual: torch.Tensor | None, layout: Layout) -> None:
    """Padding is repeated, not owed: a checkpoint and another bucket layout do not carry it along."""
    if residual is not None:
        residual.index_fill_(0, layout.padding, 0.0)
