"""One bucket through a parameter server: pushed to the owners of its shards, averaged, coded again, pulled."""

import collections
import dataclasses

import torch

from ..collectives.wire_meter import Pending
from ..stopwatch import add_seconds
from .exchange import Direction, Exchange
from .plans import Chunk, planned
from .segments import CHUNKS_AHEAD
from .topology import Received, Topology


@dataclasses.dataclass(kw_only=True, slots=True)
class PushPull(Exchange):
    """The mean over ranks, through the owners of the shards."""

    topology: Topology
    pull: Direction

    def start_average_(self, gradients: list[torch.Tensor]) -> Pending[None]:
        """Replace the gradients by their mean over ranks: all but step 6, which is done by who waits.

        1. Add this rank's residual and encode every shard; keep what the code left out as the new residual.
        2. Push every shard to its owner: an all-to-all where rank r owns shard r.
        3. Decode and sum the W versions of each own shard in fp32; divide by W.
        4. Add the shard's residual, encode the mean again, keep what was left out.
        5. Pull the coded means: an all-gather where rank r owns shard r.
        6. Decode all shards, the own one included, so that every rank ends with the same bits.

        That happens chunk by chunk: while one is coded, those before it are on the wire. See
        :meth:`.Exchange.start_average_`.
        """
        layout, step = self.layout, self.step
        chunks = planned(layout, self.coder.codec, step.bits, step.parameter_bits, self.coder.bucket_size)
        with torch.inference_mode():
            self.take(gradients)
            pulled = self._push_and_pull(chunks)
            self.push.clear_padding()
            self.pull.clear_padding()

        def finish() -> None:
            # 6.
            with torch.inference_mode():
                for chunk, pull in zip(chunks, pulled, strict=True):
                    self._decode(chunk, pull.wait())
                self.give_back()

        return Pending(finish)

    def _push_and_pull(self, chunks: list[Chunk]) -> list[Pending[torch.Tensor]]:
        """Steps 1 to 5 of all chunks, up to the pulls under way."""
        transport, round_trip = self.step.transport, self.step.transport.next_round_trip
        pushed: collections.deque[Pending[Received]] = collections.deque()
        pulled: list[Pending[torch.Tensor]] = []

        def answer_oldest() -> None:
            chunk = chunks[len(pulled)]
            means = self._coded_means(chunk, pushed.popleft().wait())
            pulled.append(self.topology.start_pull(transport, means, chunk.lengths))

        for chunk in chunks:
            shards = self.coded_shards(chunk)
            pushed.append(self.topology.start_push(transport, shards, chunk.lengths, round_trip))
            if len(pushed) > CHUNKS_AHEAD:
                answer_oldest()
        while pushed:
            answer_oldest()
        return pulled

    def _coded_means(self, chunk: Chunk, received: Received) -> torch.Tensor:
        """Steps 3 and 4: the messages of the owned shards' means, joined."""
        owned = self.topology.owned(self.step.transport)
        lengths = [chunk.lengths[r] for r in owned]
        with add_seconds(self.step.costs, "encode_seconds"):
            means = self.new_messages(sum(lengths))
            for r, versions, mean in zip(owned, received, means.split_with_sizes(lengths), strict=True):
                same = [r] * len(versions)
                self.checks.compare(chunk, versions.reshape(-1), same, chunk.place, lambda rank: rank)
                payloads = zip(chunk.payloads(r, versions), chunk.payloads(r, mean), strict=True)
                for segment, (pushed, payload) in zip(chunk.segments[r], payloads, strict=True):
                    self.coder.encode_mean(self, self.pull, segment, pushed, payload)
            self.checks.sign(chunk, means, owned, chunk.place + 1)
        return means

    def _decode(self, chunk: Chunk, pulled: torch.Tensor) -> None:
        """Step 6."""
        with add_seconds(self.step.costs, "decode_seconds"):
            shards = range(len(chunk.lengths))
            self.checks.compare(chunk, pulled, shards, chunk.place + 1, self.topology.owner)
            if self.checks.is_spoilt:
                return
            if chunk.stride:
                part, bits = chunk.span
                codec = self.coder.codec(bits)
                codec.decode_parts_into_(self.vector.part(part), chunk.rows(pulled), chunk.stride)
                return
            for r, message in enumerate(pulled.split_with_sizes(chunk.lengths)):
                for segment, payload in zip(chunk.segments[r], chunk.payloads(r, message), strict=True):
                    self.coder.codec(segment.bits).decode_into_(self.vector.part(segment.part), payload)
